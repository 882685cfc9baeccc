//! Plans that are the work of three servers: movers of one process over one tree, joined by
//! questions that the tests lose, repeat and answer late. Kills are in `several_kill`.

use super::dir_tree::DirTree;
use super::snapshot;
use super::support::{LIMIT, leftovers, need_root, noise, spec};
use crate::{Mover, MoverOptions, PfsHook, Servers};
use forebay_interfaces::peers::asking;
use forebay_proto::control::{
    Direction, PartState, PlanState, PlanStatus, StageKind, StageOptions, StageSpec,
};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Caller, Errno, PlanId, Result, ShardId};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVERS: u16 = 3;

/// How questions fare.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
enum Weather {
    #[default]
    Fair,
    /// Some are lost, some answers are, some come twice.
    Foul,
    /// This server is not reached.
    Away(u16),
    /// This server is lost for good.
    Lost(u16),
}

#[derive(Default)]
struct Net {
    movers: Mutex<Vec<Option<Arc<Mover>>>>,
    weather: Mutex<Weather>,
    luck: Mutex<Option<StdRng>>,
}

impl Net {
    fn ask(&self, to: ShardId, question: &Question<'_>) -> Result<Reply> {
        let Question::Staging { question, .. } = question else { return Err(Errno::EPROTO) };
        let mover = self.movers.lock().get(usize::from(to.0)).cloned().flatten();
        let answer = || mover.as_ref().ok_or(Errno::EHOSTUNREACH)?.answer(question);
        match *self.weather.lock() {
            Weather::Away(server) if server == to.0 => return Err(Errno::EHOSTUNREACH),
            Weather::Lost(server) if server == to.0 => return Err(Errno::EIO),
            Weather::Foul => {}
            _ => return answer().map(Reply::Staging),
        }
        let luck = self.luck.lock().get_or_insert_with(|| StdRng::seed_from_u64(3)).random();
        match luck {
            0..50u8 => Err(Errno::EHOSTUNREACH),
            50..100 => answer().and(Err(Errno::ETIMEDOUT)),
            100..150 => answer().and_then(|_| answer()).map(Reply::Staging),
            _ => answer().map(Reply::Staging),
        }
    }
}

struct Rig {
    dir: PathBuf,
    net: Arc<Net>,
    hook: Option<(u16, PfsHook)>,
    _keep: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(None)
    }

    /// With a hook at the PFS of one server.
    fn with(hook: Option<(u16, PfsHook)>) -> Rig {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().to_path_buf();
        std::fs::create_dir(dir.join("pfs")).unwrap();
        let net = Arc::<Net>::default();
        net.movers.lock().resize(usize::from(SERVERS), None);
        let rig = Rig { dir, net, hook, _keep: keep };
        (0..SERVERS).for_each(|server| rig.start(server));
        rig
    }

    /// Starts a server, as after its end.
    fn start(&self, server: u16) {
        let net = self.net.clone();
        let peers =
            asking(ShardId(server), SERVERS, 7, move |to, question, _, _| net.ask(to, question));
        let hook = self.hook.clone().filter(|(whose, _)| *whose == server).map(|(_, hook)| hook);
        let options =
            MoverOptions { servers: Some(Servers::new(peers)), hook, ..MoverOptions::default() };
        let tree = Arc::new(DirTree::of_server(&self.dir.join("buffer"), server, SERVERS));
        let plans = self.dir.join(format!("plans-{server}"));
        let mover = Arc::new(Mover::new(tree, plans, options).unwrap());
        mover.resume();
        self.net.movers.lock()[usize::from(server)] = Some(mover);
    }

    /// Ends a server in order.
    fn end(&self, server: u16) {
        let mover = self.net.movers.lock()[usize::from(server)].take().unwrap();
        assert_eq!(mover.shutdown(LIMIT), []);
    }

    fn mover(&self) -> Arc<Mover> {
        self.net.movers.lock()[0].clone().unwrap()
    }

    fn weather(&self, weather: Weather) {
        *self.net.weather.lock() = weather;
    }

    fn pfs(&self, rel: &str) -> PathBuf {
        self.dir.join("pfs").join(rel)
    }

    fn buffer(&self, rel: &str) -> PathBuf {
        self.dir.join("buffer/tree").join(rel)
    }

    fn stage_in(&self, pfs: &str, buffer: &str) -> StageSpec {
        spec(Direction::In, &self.pfs(pfs), buffer)
    }

    fn stage_out(&self, buffer: &str, pfs: &str) -> StageSpec {
        spec(Direction::Out, &self.pfs(pfs), buffer)
    }

    fn start_plan(&self, spec: StageSpec) -> PlanId {
        self.mover().start(&Caller::root(), spec).unwrap().plan
    }

    fn status(&self, plan: PlanId) -> PlanStatus {
        self.mover().status(&Caller::root(), plan).unwrap()
    }

    fn wait(&self, plan: PlanId) -> PlanStatus {
        let status = self.mover().wait(&Caller::root(), plan, LIMIT).unwrap();
        assert!(status.state.is_final(), "the plan does not end: {status:#?}");
        status
    }

    fn must(&self, spec: StageSpec) -> PlanStatus {
        let status = self.wait(self.start_plan(spec));
        assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
        assert_eq!(status.files_done, status.files_total);
        assert_eq!(status.bytes_done, status.bytes_total);
        let parts: u64 = status.parts.iter().map(|part| part.bytes_done).sum();
        assert_eq!(parts, status.bytes_done, "{:#?}", status.parts);
        status
    }

    /// Waits for a state of a plan's parts.
    fn until(&self, plan: PlanId, is_so: impl Fn(&PlanStatus) -> bool) {
        let end = Instant::now() + LIMIT;
        while !is_so(&self.status(plan)) {
            assert!(Instant::now() < end, "{:#?}", self.status(plan));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn nothing_left(&self) {
        assert_eq!(leftovers(&self.dir), Vec::<PathBuf>::new());
        for server in 0..SERVERS {
            let unnamed = self.dir.join(format!("buffer/unnamed-{server}"));
            assert_eq!(std::fs::read_dir(unnamed).unwrap().count(), 0, "server {server}");
            let plans = std::fs::read_dir(self.dir.join(format!("plans-{server}"))).unwrap();
            let names = plans.flatten().map(|entry| entry.file_name());
            let shares: Vec<_> =
                names.filter(|name| name.to_string_lossy().starts_with("share-")).collect();
            assert!(shares.is_empty(), "server {server}: {shares:?}");
        }
    }
}

fn make_tree(top: &Path, files: u64) {
    for dir in 0..4 {
        let dir = top.join(format!("d{dir}/e"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..files / 4 {
            let bytes = noise(3_000 + number as usize, number);
            std::fs::write(dir.join(format!("\u{e4} {number}\n")), bytes).unwrap();
        }
        std::fs::write(dir.join("one"), noise(5_000, 9)).unwrap();
        std::fs::hard_link(dir.join("one"), top.join(format!("{}-again", noise_name(&dir))))
            .unwrap();
        symlink("one", dir.join("link")).unwrap();
    }
    let big = std::fs::File::create(top.join("big")).unwrap();
    big.write_all_at(&noise(9 << 20, 5), 1 << 20).unwrap();
    big.set_len(20 << 20).unwrap();
}

fn noise_name(dir: &Path) -> String {
    dir.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned()
}

fn same(one: &Path, other: &Path) {
    let take = |path: &Path| snapshot::forget_atimes(snapshot::take(path));
    snapshot::assert_same(&take(one), &take(other));
}

fn in_and_out(rig: &Rig) -> [PlanStatus; 2] {
    make_tree(&rig.pfs("tree"), 400);
    let staged_in = rig.must(rig.stage_in("tree", "/in"));
    same(&rig.pfs("tree"), &rig.buffer("in"));
    let staged_out = rig.must(rig.stage_out("/in", "out"));
    same(&rig.pfs("tree"), &rig.pfs("out"));
    rig.nothing_left();
    [staged_in, staged_out]
}

#[test]
fn a_tree_is_staged_in_and_out_by_three_servers() {
    need_root();
    let rig = Rig::new();
    let [staged_in, staged_out] = in_and_out(&rig);
    for status in [&staged_in, &staged_out] {
        assert_eq!(status.parts.len(), usize::from(SERVERS));
        assert!(status.parts.iter().all(|part| part.files_done > 50), "{:#?}", status.parts);
    }
}

#[test]
fn lost_and_repeated_questions_change_nothing() {
    need_root();
    let rig = Rig::new();
    rig.weather(Weather::Foul);
    in_and_out(&rig);
}

#[test]
fn a_server_that_is_away_is_waited_for_and_named() {
    let rig = Rig::new();
    make_tree(&rig.pfs("tree"), 100);
    rig.weather(Weather::Away(1));
    let plan = rig.start_plan(rig.stage_in("tree", "/in"));
    rig.until(plan, |status| status.parts[1].state == PartState::Waiting);
    let status = rig.status(plan);
    assert_eq!(status.state, PlanState::Running);
    assert!(status.parts[1].why.as_deref().is_some_and(|why| why.contains("does not answer")));
    rig.until(plan, |status| status.parts[2].files_done > 20);
    rig.weather(Weather::Fair);
    assert_eq!(rig.wait(plan).state, PlanState::Done);
    same(&rig.pfs("tree"), &rig.buffer("in"));
    rig.nothing_left();
}

#[test]
fn a_queued_plan_names_the_server_that_those_before_it_wait_for() {
    let rig = Rig::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..12 {
        std::fs::write(rig.pfs(&format!("tree/{number}")), noise(1_000, number)).unwrap();
    }
    rig.weather(Weather::Away(1));
    // Two run at once.
    let plans = ["/a", "/b", "/c"].map(|to| rig.start_plan(rig.stage_in("tree", to)));
    let [first, second, third] = plans;
    for plan in [first, second] {
        rig.until(plan, |status| status.parts[1].state == PartState::Waiting);
    }
    let listed = rig.mover().list(&Caller::root());
    let listed = listed.iter().find(|status| status.plan == third).unwrap();
    for queued in [&rig.status(third), listed] {
        assert_eq!(queued.state, PlanState::Queued);
        assert_eq!(queued.behind, [first, second]);
        assert_eq!(queued.parts[1].state, PartState::Waiting);
        assert_eq!(queued.parts[0].state, PartState::Idle, "its own server answers");
        let why = queued.parts[1].why.as_deref();
        assert!(why.is_some_and(|why| why.contains("does not answer")), "{why:?}");
    }
    assert!(rig.status(first).behind.is_empty());
    rig.weather(Weather::Fair);
    for plan in plans {
        let ended = rig.wait(plan);
        assert_eq!(ended.state, PlanState::Done, "{:#?}", ended.errors);
        assert!(ended.behind.is_empty());
    }
    rig.nothing_left();
}

#[test]
fn a_lost_server_fails_its_files_by_name() {
    let rig = Rig::new();
    make_tree(&rig.buffer("tree"), 100);
    rig.weather(Weather::Lost(2));
    let status = rig.wait(rig.start_plan(rig.stage_out("/tree", "out")));
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.files_done + status.files_failed, status.files_total, "{status:#?}");
    assert!(status.files_failed > 10 && status.files_done > 40, "{status:#?}");
    let lost = "the server of shard 2";
    let of_lost: Vec<_> =
        status.errors.iter().filter(|e| e.server.as_deref() == Some(lost)).collect();
    assert!(of_lost.len() > 10, "{:#?}", status.errors);
    assert!(
        of_lost.iter().all(|e| e.why.contains("lost") && e.path.to_string().contains("/tree/"))
    );
    assert_eq!(status.parts[2].state, PartState::Failed);
    rig.nothing_left();
}

#[test]
fn a_cancel_reaches_all_servers_and_leaves_nothing() {
    for away in [false, true] {
        for out in [false, true] {
            let rig = Rig::new();
            let (from, mut spec) = match out {
                true => (rig.buffer("tree"), rig.stage_out("/tree", "out")),
                false => (rig.pfs("tree"), rig.stage_in("tree", "/in")),
            };
            std::fs::create_dir_all(&from).unwrap();
            for number in 0..24 {
                std::fs::write(from.join(number.to_string()), noise(1 << 20, number)).unwrap();
            }
            spec.rate_bytes_per_s = 3 << 20;
            let plan = rig.start_plan(spec);
            rig.until(plan, |status| status.parts.iter().all(|part| part.bytes_done > 0));
            if away {
                rig.weather(Weather::Away(1));
            }
            let ended = rig.mover().cancel(&Caller::root(), plan).unwrap();
            assert_eq!(ended.state, PlanState::Cancelled);
            if away {
                // It has not heard of it; it is ended and started, and sweeps by itself.
                rig.end(1);
                rig.start(1);
                std::thread::sleep(Duration::from_millis(300));
            }
            rig.nothing_left();
        }
    }
}

#[test]
fn servers_that_end_in_order_let_the_plan_go_on() {
    for server in 0..SERVERS {
        let rig = Rig::new();
        make_tree(&rig.pfs("tree"), 40);
        for number in 0..12 {
            std::fs::write(rig.pfs(&format!("tree/{number}")), noise(1 << 20, number)).unwrap();
        }
        let mut slow = rig.stage_in("tree", "/in");
        slow.rate_bytes_per_s = 6 << 20;
        let plan = rig.start_plan(slow);
        rig.until(plan, |status| status.parts.iter().all(|part| part.bytes_done > 0));
        rig.end(server);
        std::thread::sleep(Duration::from_millis(100));
        rig.start(server);
        rig.mover().set_rate(&Caller::root(), plan, 0).unwrap();
        let status = rig.wait(plan);
        assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
        assert_eq!(status.bytes_done, status.bytes_total);
        same(&rig.pfs("tree"), &rig.buffer("in"));
        rig.nothing_left();
    }
}

#[test]
fn a_rate_limit_is_that_of_all_servers_together() {
    let rig = Rig::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..60 {
        std::fs::write(rig.pfs(&format!("tree/{number}")), noise(256 << 10, number)).unwrap();
    }
    let mut limited = rig.stage_in("tree", "/in");
    limited.rate_bytes_per_s = 5 << 20;
    let begun = Instant::now();
    let plan = rig.start_plan(limited);
    assert_eq!(rig.wait(plan).state, PlanState::Done);
    let took_s = begun.elapsed().as_secs_f64();
    // 15 MiB at 5 MiB/s.
    assert!((2.4..4.5).contains(&took_s), "{took_s} s");
}

#[test]
fn a_server_without_the_pfs_copies_nothing_to_what_lies_there_instead() {
    let hook: PfsHook = Arc::new(|call, name| match call {
        // As on a node where it is not mounted: the directory is there, what was put in it is not.
        "stat" if name.ends_with(b".tmp") => Err(Errno::ENOENT),
        _ => Ok(()),
    });
    let rig = Rig::with(Some((1, hook)));
    make_tree(&rig.buffer("tree"), 100);
    let status = rig.wait(rig.start_plan(rig.stage_out("/tree", "out")));
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.parts[1].files_done, 0);
    assert!(status.parts[1].why.as_deref().is_some_and(|why| why.contains("mounted there")));
    assert!(status.errors.iter().any(|e| e.server.as_deref() == Some("the server of shard 1")));
    assert!(status.parts[2].files_done > 10);
    rig.nothing_left();
}

#[test]
fn errors_of_files_say_on_which_server_and_are_retried_there() {
    let hook: PfsHook = Arc::new(|call, name| match call {
        "open" if name.ends_with(b"7\n") => Err(Errno::EACCES),
        _ => Ok(()),
    });
    let rig = Rig::with(Some((2, hook)));
    make_tree(&rig.pfs("tree"), 200);
    let status = rig.wait(rig.start_plan(rig.stage_in("tree", "/in")));
    assert_eq!(status.state, PlanState::Failed);
    assert!(!status.errors.is_empty());
    for error in &status.errors {
        assert_eq!(error.server.as_deref(), Some("the server of shard 2"));
        assert_eq!(error.errno, libc::EACCES);
        assert!(error.path.to_string().ends_with("7\n"), "{error:?}");
    }
    assert_eq!(status.files_done + status.files_failed, status.files_total);
    rig.nothing_left();
}

#[test]
fn single_files_and_lists_are_staged_too() {
    let rig = Rig::new();
    let mut list = String::new();
    for number in 0..30 {
        std::fs::write(rig.pfs(&format!("f{number}")), noise(10_000, number)).unwrap();
        list.push_str(&format!("f{number}\n"));
    }
    std::fs::write(rig.pfs("list"), list).unwrap();
    let listed = StageSpec { kind: StageKind::List, ..rig.stage_in("list", "/listed") };
    let status = rig.must(listed);
    assert!(status.parts.iter().all(|part| part.files_done > 5), "{:#?}", status.parts);
    for number in 0..4 {
        let (from, name) = (format!("f{number}"), format!("/one-{number}"));
        rig.must(rig.stage_in(&from, &name));
        rig.must(rig.stage_out(&name, &format!("back-{number}")));
        let back = std::fs::read(rig.pfs(&format!("back-{number}"))).unwrap();
        assert_eq!(back, noise(10_000, number));
    }
    rig.nothing_left();
}

#[test]
fn what_is_there_stays_also_where_three_servers_copy() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.buffer("tree")).unwrap();
    std::fs::create_dir(rig.pfs("out")).unwrap();
    for number in 0..60u64 {
        std::fs::write(rig.buffer(&format!("tree/{number}")), noise(3_000, number)).unwrap();
        if number % 2 == 0 {
            std::fs::write(rig.pfs(&format!("out/{number}")), b"mine").unwrap();
        }
    }
    let with = |no_clobber, dry_run| {
        let options = StageOptions { no_clobber, dry_run, ..StageOptions::default() };
        StageSpec { options, ..rig.stage_out("/tree", "out") }
    };
    let status = rig.wait(rig.start_plan(with(false, true)));
    let dry = status.dry_run.unwrap();
    assert_eq!((dry.files_new, dry.files_overwritten, status.bytes_done), (30, 30, 0));
    let status = rig.must(with(true, false));
    assert_eq!((status.files_existing, status.bytes_done), (30, 30 * 3_000));
    for number in 0..60u64 {
        let content = std::fs::read(rig.pfs(&format!("out/{number}"))).unwrap();
        let wanted = if number % 2 == 0 { b"mine".to_vec() } else { noise(3_000, number) };
        assert!(content == wanted, "{number}");
    }
    // The directory that it goes into is looked for once, by the plan's server.
    let refused = rig.wait(rig.start_plan(rig.stage_out("/tree", "no/such")));
    assert_eq!((refused.state, refused.errors.len()), (PlanState::Failed, 1));
    assert_eq!(leftovers(&rig.pfs("")), Vec::<PathBuf>::new());
}
