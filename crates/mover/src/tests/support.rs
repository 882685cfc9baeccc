//! What the tests share: a mover with its buffer and PFS in a temporary directory.

use super::dir_tree::DirTree;
use crate::{Mover, MoverOptions};
use forebay_proto::control::{
    Direction, PathBytes, PlanState, PlanStatus, StageKind, StageOptions, StageSpec, Verify,
};
use forebay_proto::{Caller, PlanId};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time that a plan of a test may take.
pub const LIMIT: Duration = Duration::from_secs(120);

pub struct Site {
    pub dir: PathBuf,
    pub tree: Arc<DirTree>,
    pub mover: Mover,
    _keep: Option<tempfile::TempDir>,
}

impl Site {
    pub fn new() -> Site {
        Site::with(MoverOptions::default())
    }

    pub fn with(options: MoverOptions) -> Site {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().to_path_buf();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        std::fs::create_dir(dir.join("pfs")).unwrap();
        Site { _keep: Some(keep), ..Site::open(&dir, options) }
    }

    /// On a directory that exists (and stays).
    pub fn open(dir: &Path, options: MoverOptions) -> Site {
        let tree = Arc::new(DirTree::open(&dir.join("buffer")));
        let mover = Mover::new(tree.clone(), dir.join("plans"), options).unwrap();
        Site { dir: dir.to_path_buf(), tree, mover, _keep: None }
    }

    /// A path on the PFS.
    pub fn pfs(&self, rel: &str) -> PathBuf {
        self.dir.join("pfs").join(rel)
    }

    /// Where a path of the buffer really is.
    pub fn buffer(&self, rel: &str) -> PathBuf {
        self.dir.join("buffer/tree").join(rel)
    }

    /// Waits until a plan has come so far.
    pub fn until(&self, plan: PlanId, has: impl Fn(&PlanStatus) -> bool) {
        let until = Instant::now() + LIMIT;
        loop {
            let status = self.mover.status(&Caller::root(), plan).unwrap();
            if has(&status) {
                return;
            }
            assert!(Instant::now() < until, "{status:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn wait(&self, plan: PlanId) -> PlanStatus {
        let status = self.mover.wait(&Caller::root(), plan, LIMIT).unwrap();
        assert!(status.state.is_final(), "the plan does not end: {status:?}");
        status
    }

    /// Runs a plan of root to its end.
    pub fn run(&self, spec: StageSpec) -> PlanStatus {
        self.run_as(&Caller::root(), spec)
    }

    pub fn run_as(&self, who: &Caller, spec: StageSpec) -> PlanStatus {
        let status = self.mover.start(who, spec).unwrap();
        self.wait(status.plan)
    }

    /// Runs a plan that must succeed.
    pub fn must(&self, spec: StageSpec) -> PlanStatus {
        let status = self.run(spec);
        assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
        assert_eq!(status.files_done, status.files_total);
        assert_eq!(status.other_entries_done, status.other_entries_total);
        assert_eq!(status.bytes_done, status.bytes_total);
        status
    }

    pub fn stage_in(&self, pfs: &str, buffer: &str) -> StageSpec {
        spec(Direction::In, &self.pfs(pfs), buffer)
    }

    pub fn stage_out(&self, buffer: &str, pfs: &str) -> StageSpec {
        spec(Direction::Out, &self.pfs(pfs), buffer)
    }
}

/// A plan with the usual settings.
pub fn spec(direction: Direction, pfs: &Path, buffer: &str) -> StageSpec {
    StageSpec {
        direction,
        kind: StageKind::Auto,
        pfs_path: PathBytes::new(pfs.as_os_str().as_bytes()),
        buffer_path: PathBytes::new(buffer.as_bytes()),
        verify: Verify::Cache,
        rate_bytes_per_s: 0,
        keep_going: true,
        retries: 3,
        seen_at: None,
        commit: None,
        options: StageOptions::default(),
    }
}

/// Some bytes that do not repeat.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0_u8; len.next_multiple_of(8)];
    // Words, not slices: little is compiled for them, optimized or not.
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

/// Some tests make other users' files or mount something: without root they fail, and do not pass
/// unrun.
pub fn need_root() {
    assert!(rustix::process::geteuid().is_root(), "run this test as root");
}

/// Temporary names left below a directory.
pub fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            if entry.file_name().as_bytes().starts_with(b".forebay-") {
                found.push(entry.path());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
        }
    }
    found
}
