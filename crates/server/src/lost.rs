//! What a buffer has lost with servers that are gone for good: a walk over the names that are left.
//!
//! A path is lost if its inode was on such a server, or if it is a striped file that has objects
//! there: exactly those answer EIO. A lost directory is named; of what was in it the servers that are left
//! know the directories that they have, by number, and all below them ("strays": they are there, and no
//! path leads to them), and how many names of files were lost with it.
//!
//! Invariants: a page looks at no more than [`LOOKED_MAX`] entries and asks for strays
//! no more than [`QUESTIONS_MAX`] times, and the
//! walk keeps entries of no more than [`KEPT_LEVELS`] directories, however large the tree is; everything
//! is looked up with the requester's rights, also where a page goes on: in a stray with those that it asks
//! for itself, for what was above it is gone. Called by [`crate::Server::lost`].

use forebay_interfaces::tree::BufferTree;
use forebay_namespace::ShardedTree;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::net::lost::{
    LOST_BYTES_MAX, LOST_DEPTH_MAX, LOST_PATHS_MAX, Lost, LostCursor, LostPage, LostPath,
    StrayCursor,
};
use forebay_proto::net::tree::{Stray, TreeQuestion, TreeReply};
use forebay_proto::{Caller, Cookie, Errno, Ino, Result, ShardId};
use std::collections::{BTreeMap, VecDeque};

/// Most entries that one page looks at: it is answered within seconds.
const LOOKED_MAX: usize = 32 << 10;
/// Most questions for strays in one page.
const QUESTIONS_MAX: usize = 16;
/// Most directories of the way down of which entries are kept while the walk is below them.
const KEPT_LEVELS: usize = 16;

/// The page that begins at `from`. EHOSTUNREACH or ETIMEDOUT while a server that is needed is away.
pub(crate) fn page(tree: &ShardedTree, who: &Caller, from: LostCursor) -> Result<LostPage> {
    let shards = tree.lost_shards();
    if shards.is_empty() {
        return Ok(LostPage::default());
    }
    let mut walk = Walk {
        tree,
        who,
        shards,
        stray: None,
        strays: VecDeque::new(),
        levels: Vec::new(),
        page: LostPage::default(),
    };
    walk.resume(&from)?;
    walk.run()?;
    Ok(walk.page)
}

struct Found {
    cookie: Cookie,
    name: Vec<u8>,
    ino: Ino,
    kind: FileKind,
    lost: bool,
}

/// A directory on the way down.
struct Level {
    dir: Ino,
    /// In the one above; empty for the root.
    name: Vec<u8>,
    /// All up to here is done.
    after: Cookie,
    rest: VecDeque<Found>,
}

struct Walk<'a> {
    tree: &'a ShardedTree,
    who: &'a Caller,
    shards: Vec<ShardId>,
    /// Done with what can be reached from the root.
    stray: Option<StrayCursor>,
    /// After that one, on its shard.
    strays: VecDeque<Stray>,
    levels: Vec<Level>,
    page: LostPage,
}

impl Walk<'_> {
    fn is_lost(&self, ino: Ino) -> bool {
        self.shards.contains(&ino.shard())
    }

    /// Goes down to where the last page ended. What is not there any more needs no look.
    fn resume(&mut self, from: &LostCursor) -> Result<()> {
        let fits = from.after.is_empty() || from.after.len() == from.names.len() + 1;
        if !fits || from.names.len() > LOST_DEPTH_MAX {
            return Err(Errno::EINVAL);
        }
        let after = |at: usize| Cookie(from.after.get(at).copied().unwrap_or(0));
        self.stray = from.stray;
        let mut dir = match from.stray {
            None if self.is_lost(Ino::ROOT) => {
                self.tell(&[], Lost::Names);
                return Ok(());
            }
            None => Ino::ROOT,
            Some(stray) if !self.is_left(stray.at.shard()) => return Err(Errno::EINVAL),
            Some(stray) if !stray.is_open || !self.is_stray(stray.at)? => return Ok(()),
            Some(stray) => stray.at,
        };
        self.enter(dir, Vec::new(), after(0));
        for (at, name) in (1..).zip(&from.names) {
            match self.tree.child(self.who, dir, name.as_bytes()) {
                Ok(attr) if attr.kind() == FileKind::Dir => dir = attr.ino,
                Ok(_) | Err(Errno::ENOENT | Errno::ESTALE | Errno::EACCES | Errno::EIO) => break,
                Err(errno) => return Err(errno),
            }
            self.enter(dir, name.as_bytes().to_vec(), after(at));
        }
        Ok(())
    }

    fn is_left(&self, shard: ShardId) -> bool {
        shard.0 < self.tree.shard_count() && !self.shards.contains(&shard)
    }

    /// Before the first on this shard, or on the next one that is left.
    fn strays_of(&self, shard: u16) -> Option<StrayCursor> {
        let shard = (shard..self.tree.shard_count()).map(ShardId).find(|at| self.is_left(*at))?;
        Some(StrayCursor { at: Ino::new(shard, 0), is_open: false })
    }

    fn strays_after(&self, after: Ino) -> Result<Vec<Stray>> {
        let question = TreeQuestion::Strays { after, shards: self.shards.clone() };
        match self.tree.put(after.shard(), self.who, question)? {
            TreeReply::Strays(strays) => Ok(strays),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Nobody gets more to see by making up where a list goes on.
    fn is_stray(&self, dir: Ino) -> Result<bool> {
        let before = Ino(dir.0.saturating_sub(1));
        Ok(self
            .strays_after(before)?
            .first()
            .is_some_and(|stray| stray.is_stray && stray.ino == dir))
    }

    /// Goes on to the next directory that nobody can reach, or looks for it; false: there are no more.
    fn next_stray(&mut self, looked: &mut usize) -> Result<bool> {
        let Some(here) = self.stray else {
            self.stray = self.strays_of(0);
            return Ok(self.stray.is_some());
        };
        if self.strays.is_empty() {
            // One question takes the place of so many entries.
            *looked += LOOKED_MAX / QUESTIONS_MAX;
            self.strays = self.strays_after(here.at)?.into();
            if self.strays.is_empty() {
                let next = self.strays_of(here.at.shard().0 + 1);
                self.stray = next.or(self.stray);
                return Ok(next.is_some());
            }
        }
        while let Some(next) = self.strays.pop_front() {
            self.page.links += next.links;
            self.stray = Some(StrayCursor { at: next.ino, is_open: next.is_stray });
            if next.is_stray {
                self.enter(next.ino, Vec::new(), Cookie::START);
                self.tell(&[], Lost::Path);
                break;
            }
        }
        Ok(true)
    }

    fn enter(&mut self, dir: Ino, name: Vec<u8>, after: Cookie) {
        if let Some(above) = self.levels.len().checked_sub(KEPT_LEVELS) {
            // Listed again when the walk is back.
            self.levels[above].rest = VecDeque::new();
        }
        self.levels.push(Level { dir, name, after, rest: VecDeque::new() });
    }

    fn run(&mut self) -> Result<()> {
        let (mut looked, mut bytes) = (0, 0);
        loop {
            if self.levels.is_empty() && self.stray.is_none() && !self.next_stray(&mut looked)? {
                return Ok(());
            }
            if looked >= LOOKED_MAX
                || bytes >= LOST_BYTES_MAX
                || self.page.paths.len() >= LOST_PATHS_MAX
            {
                self.page.next = Some(self.cursor());
                return Ok(());
            }
            let Some(level) = self.levels.last_mut() else {
                match self.next_stray(&mut looked)? {
                    true => continue,
                    false => return Ok(()),
                }
            };
            let Some(found) = level.rest.pop_front() else {
                self.load()?;
                continue;
            };
            looked += 1;
            level.after = found.cookie;
            let is_dir = found.kind == FileKind::Dir;
            if !is_dir && !self.shards.contains(&found.ino.shard()) {
                self.page.names_seen += 1;
            }
            let lost = match (found.lost, is_dir) {
                (true, true) => Some(Lost::Names),
                (true, false) => Some(Lost::Data),
                (false, true) if self.levels.len() > LOST_DEPTH_MAX => Some(Lost::Unseen),
                (false, _) if self.stray.is_some() => Some(Lost::Path),
                (false, _) => None,
            };
            if let Some(lost) = lost {
                bytes += self.tell(&found.name, lost);
            }
            if is_dir && matches!(lost, Some(Lost::Path) | None) {
                self.enter(found.ino, found.name, Cookie::START);
            }
        }
    }

    /// Reads more entries of the directory at hand; leaves it if there are none.
    fn load(&mut self) -> Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let dir = level.dir;
        let question = TreeQuestion::Positions { dir, after: level.after };
        let entries = match self.tree.put(dir.shard(), self.who, question) {
            Ok(TreeReply::Positions(entries)) => entries,
            Ok(_) => return Err(Errno::EPROTO),
            Err(Errno::EACCES) => return self.leave(Some(Lost::Unseen)),
            Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => return self.leave(None),
            // Given up while it was looked at.
            Err(Errno::EIO) if self.tree.lost_shards().contains(&dir.shard()) => {
                return self.leave(Some(Lost::Names));
            }
            Err(errno) => return Err(errno),
        };
        if entries.is_empty() {
            return self.leave(None);
        }
        let mut rest: VecDeque<Found> = entries
            .into_iter()
            .map(|(cookie, name, ino, kind)| Found {
                cookie,
                name,
                ino,
                kind,
                lost: self.is_lost(ino),
            })
            .collect();
        self.look_at_objects(&mut rest)?;
        if let Some(level) = self.levels.last_mut() {
            level.rest = rest;
        }
        Ok(())
    }

    /// Files that are on record and have objects on lost servers.
    fn look_at_objects(&self, entries: &mut VecDeque<Found>) -> Result<()> {
        let mut by_shard: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            if entry.kind == FileKind::File && !entry.lost {
                by_shard.entry(entry.ino.shard()).or_default().push(at);
            }
        }
        for (shard, places) in by_shard {
            let inos = places.iter().map(|at| entries[*at].ino).collect();
            let question = TreeQuestion::StripedOn { inos, shards: self.shards.clone() };
            let TreeReply::Flags(flags) = self.tree.put(shard, self.who, question)? else {
                return Err(Errno::EPROTO);
            };
            if flags.len() != places.len() {
                return Err(Errno::EPROTO);
            }
            for (at, lost) in places.into_iter().zip(flags) {
                entries[at].lost = lost;
            }
        }
        Ok(())
    }

    /// Done with the directory at hand; `lost`: it is to be told of.
    fn leave(&mut self, lost: Option<Lost>) -> Result<()> {
        if let Some(lost) = lost {
            self.tell(&[], lost);
        }
        self.levels.pop();
        Ok(())
    }

    /// Tells of a name of the directory at hand, or, without one, of that directory; about how many
    /// bytes that takes.
    fn tell(&mut self, name: &[u8], lost: Lost) -> usize {
        let mut path = match &self.stray {
            Some(stray) => format!("?{}", stray.at.0).into_bytes(),
            None => Vec::new(),
        };
        let names = self.levels.iter().map(|level| &level.name[..]).chain([name]);
        for name in names.filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        let bytes = path.len();
        self.page.paths.push(LostPath { path: PathBytes::new(&path), lost });
        bytes
    }

    fn cursor(&self) -> LostCursor {
        LostCursor {
            names: self.levels.iter().skip(1).map(|level| PathBytes::new(&level.name)).collect(),
            after: self.levels.iter().map(|level| level.after.0).collect(),
            stray: self
                .stray
                .map(|stray| StrayCursor { is_open: !self.levels.is_empty(), ..stray }),
        }
    }
}
