//! Power cuts of the servers of a [`World`]: what each has written is recorded, and who loses power
//! starts with what was synced and any part of the rest. Called by the tests of power cuts.

use super::data::OnFlash;
use super::{Killed, Net, RUNNING, World, as_server, request, store_options};
use forebay_failpoint::kill::HOOK;
use forebay_proto::net::session::SlotId;
use forebay_proto::net::{Answer, Call};
use forebay_store::metadata::testing::log::Fate;
use forebay_store::metadata::testing::power::{self, Images, Recorded};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a world whose power can be cut: what each server writes, and what it finds at its next start.
#[derive(Default)]
pub(super) struct Power {
    pub(super) running: BTreeMap<u16, Recorded>,
    left: BTreeMap<u16, (PathBuf, Images)>,
    /// The objects of each, and where the next start finds those of who has lost its power.
    pub(super) data: BTreeMap<u16, Arc<OnFlash>>,
    pub(super) left_data: BTreeMap<u16, PathBuf>,
    cuts: u32,
}

/// A power cut: who it is of, and what becomes of what was not synced.
pub struct Cut {
    pub victims: Vec<u16>,
    pub fate: Fate,
    pub rng: StdRng,
}

impl Net {
    /// Takes the power from those of the victims that are there.
    fn cut(&self, power: &Mutex<Power>, dir: &Path, cut: &mut Cut) {
        let mut power = power.lock();
        power.cuts += 1;
        for victim in &cut.victims {
            let Some(running) = self.servers.write().remove(victim) else { continue };
            let to = dir.join(victim.to_string()).join(format!("meta{}", power.cuts));
            let images =
                power.running[victim].cut(&running.store, cut.fate, &mut || cut.rng.random(), &to);
            power.left.insert(*victim, (to, images));
            if let Some(data) = power.data.get(victim).cloned() {
                let to = dir.join(victim.to_string()).join(format!("data{}", power.cuts));
                data.cut(cut.fate, &mut cut.rng, &to);
                power.left_data.insert(*victim, to);
            }
            self.dead.lock().push(running);
        }
    }
}

impl World {
    pub(super) fn open_powered(&self, shard: u16, dir: &Path, power: &Mutex<Power>) -> LmdbStore {
        let mut power = power.lock();
        let fresh = || (dir.join("meta"), power::empty_images());
        let (meta, images) = power.left.remove(&shard).unwrap_or_else(fresh);
        let options = StoreOptions { dir: meta, volatile: false, ..store_options(dir) };
        let (store, recorded) = power::open(options, images);
        power.running.insert(shard, recorded);
        store
    }

    /// As [`World::kill_at`], but the power of these is cut: not only of who runs, and what was not
    /// synced may be gone.
    pub fn cut_at(&self, at: u32, mut cut: Cut) -> Arc<AtomicBool> {
        let (net, mut left) = (self.net.clone(), Some(at));
        let (power, dir) = (self.power.clone().unwrap(), self.dir.path().to_path_buf());
        let fired = Arc::new(AtomicBool::new(false));
        let tell = fired.clone();
        let hook = move |_: &str| match left {
            Some(0) => {
                left = None;
                tell.store(true, Ordering::Relaxed);
                net.cut(&power, &dir, &mut cut);
                let who = RUNNING.with_borrow(|running| *running.last().unwrap());
                if cut.victims.contains(&who) {
                    resume_unwind(Box::new(Killed));
                }
            }
            _ => left = left.map(|left| left - 1),
        };
        HOOK.set(Some(Box::new(hook)));
        fired
    }

    /// When this thread passes a point next, another thread makes a call at a shard, in a slot of its own, until it is answered.
    pub fn call_at(&self, point: &'static str, shard: u16, call: Call<'static>) {
        let (sessions, session) = {
            let servers = self.net.servers.read();
            let server = &servers[&shard];
            (server.sessions.clone(), server.session.clone())
        };
        let mut call = Some(call);
        let hook = move |what: &str| {
            if what != point {
                return;
            }
            let Some(call) = call.take() else { return };
            let (sessions, session) = (&sessions, &session);
            let work = move || {
                let mut asked = request(session, 1, call);
                asked.slot = SlotId(1);
                as_server(shard, || sessions.call(session, &asked, &[], &mut Vec::new(), false))
            };
            let reply = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
            let answer = reply.unwrap().answer;
            assert!(!matches!(answer, Answer::Failed(_)), "{answer:?}");
        };
        HOOK.set(Some(Box::new(hook)));
    }

    /// A power cut while nothing is being done.
    pub fn cut_now(&self, mut cut: Cut) {
        self.net.cut(self.power.as_ref().unwrap(), self.dir.path(), &mut cut);
    }

    /// Brings a server's database up to what its log has.
    pub fn checkpoint(&self, shard: u16) {
        let store = self.net.servers.read()[&shard].store.clone();
        self.power.as_ref().unwrap().lock().running[&shard].checkpoint(&store);
    }

    /// A call at a shard, made once; `None` if the server went meanwhile, and nobody answered.
    pub fn call_once(&self, shard: u16, call: Call<'_>) -> Option<Answer> {
        self.call_once_with(shard, call, &[])
    }

    pub(super) fn call_once_with(
        &self,
        shard: u16,
        call: Call<'_>,
        payload: &[u8],
    ) -> Option<Answer> {
        let seq = {
            let mut seqs = self.seqs.borrow_mut();
            seqs[usize::from(shard)] += u32::from(call.is_once_only());
            seqs[usize::from(shard)]
        };
        let (sessions, session) = {
            let servers = self.net.servers.read();
            let server = servers.get(&shard)?;
            (server.sessions.clone(), server.session.clone())
        };
        let request = request(&session, seq, call);
        let mut room = Vec::new();
        let reply =
            as_server(shard, || sessions.call(&session, &request, payload, &mut room, false));
        let there = self.net.servers.read().contains_key(&shard);
        reply.filter(|_| there).map(|reply| self.note(reply.answer))
    }

    /// The client lets go of all that it was given.
    pub fn forget_all(&self) {
        for (ino, count) in std::mem::take(&mut *self.held.borrow_mut()) {
            self.done(ino.shard().0, Call::Forget(vec![(ino, count)])).unwrap();
        }
    }
}
