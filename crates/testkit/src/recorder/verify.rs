//! The judge: what a file system made of a power cut, held against the journal.
//!
//! Rules, for a cut at record `n`:
//! * Names are the tree after some number of operations: at least those that an fsync answered
//!   by record `n` made durable, at most those begun before `n`.
//! * Each file shows, cell by cell, what it held at its last fsync answered by `n`, or what a
//!   step begun before `n` put there since; zeroes only where it had a hole or no data then.
//! * The file system can be used, unmounted and checked afterwards, and nothing is leaked.

use super::content::Content;
use super::names::{Kind, NameOp, Names};
use super::rig::{Rig, Surroundings};
use super::state::{Builder, Cut, choose};
use super::target::Target;
use super::workload::{Journal, What};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

/// How much more than the files' own blocks may be in use after recovery, in bytes: metadata of
/// the file system below grows with the number of inodes.
pub const LEAK_TOLERANCE_BYTES: u64 = 3 << 20;

/// Bytes in use on the mounted file system.
pub fn used_bytes(point: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(point).context("statvfs")?;
    Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
}

/// Judges states of one recording.
pub struct Judge<'a> {
    /// The rig.
    pub rig: &'a Rig,
    /// What happened.
    pub journal: &'a Journal,
    /// The flash directory at the time.
    pub surroundings: &'a Surroundings,
    /// Bytes in use when the file system was new.
    pub empty_bytes: u64,
}

impl Judge<'_> {
    /// Builds the state of `cut`, recovers it and judges; leaves nothing mounted.
    pub fn try_cut(
        &self,
        target: &mut dyn Target,
        builder: &mut Builder<'_>,
        cut: &Cut,
    ) -> Result<()> {
        builder.build(cut).context("build the state")?;
        self.finish_cut(target, builder, cut)
    }

    /// The same with a second cut, chosen by `seed`, while the first one is recovered from: what
    /// the first had to keep, the second must keep as well.
    pub fn try_cut_twice(
        &self,
        target: &mut dyn Target,
        builder: &mut Builder<'_>,
        cut: &Cut,
        seed: u64,
    ) -> Result<()> {
        builder.build(cut).context("build the state")?;
        self.rig.restore(self.surroundings).context("restore the flash directory")?;
        self.rig.disk.keep_recovery();
        let started = target.start(self.rig);
        let recovery = self.rig.disk.take_recovery();
        started.context("mount after the first power cut")?;
        target.stop(self.rig).context("unmount after the first power cut")?;
        self.rig.must_be_released()?;
        builder.undo()?;
        builder.build(cut).context("build the state again")?;
        ensure!(!recovery.is_empty(), "a mount that writes nothing was not recorded");
        let last = recovery.len() as u64;
        if let Some(second) = choose(&recovery, &[], 0..last, 1, seed).first() {
            builder.go_on(&recovery, second)?;
            return self
                .finish_cut(target, builder, cut)
                .with_context(|| format!("second cut, {second} of the recovery's {last}"));
        }
        self.finish_cut(target, builder, cut)
    }

    /// Recovers the state that was built, and judges.
    fn finish_cut(
        &self,
        target: &mut dyn Target,
        builder: &mut Builder<'_>,
        cut: &Cut,
    ) -> Result<()> {
        self.rig.restore(self.surroundings).context("restore the flash directory")?;
        let verdict = self.recover(target, cut);
        if verdict.is_err() {
            if target.stop(self.rig).is_err() {
                self.rig.clear();
            }
            self.rig.wait_released()?;
            if let Some(dir) = std::env::var_os("FOREBAY_POWERCUT_KEEP") {
                // As the cut left it, not as recovery did.
                builder.undo()?;
                builder.build(cut)?;
                self.rig.restore(self.surroundings)?;
                self.rig.keep(Path::new(&dir))?;
            }
        }
        self.rig.must_be_released()?;
        builder.undo()?;
        verdict
    }

    fn recover(&self, target: &mut dyn Target, cut: &Cut) -> Result<()> {
        target.start(self.rig).context("mount after the power cut")?;
        self.judge_tree(cut.at())?;
        self.judge_space()?;
        self.use_it()?;
        target.stop(self.rig).context("unmount after the power cut")?;
        self.rig.must_be_released()?;
        target.check(self.rig).context("check after the power cut")
    }

    fn judge_tree(&self, at: u64) -> Result<()> {
        let seen = Names::observe(&self.rig.point).context("read the tree")?;
        let steps = &self.journal.steps;
        let durable = steps.iter().filter(|step| step.acknowledged <= at);
        let least = durable.map(|step| step.durable_names).max().unwrap_or(0);
        let begun = |k: &usize| steps[self.journal.name_steps[*k]].started < at;
        let most = (0..self.journal.name_ops.len()).take_while(begun).count();
        let matching: Vec<usize> = (least..=most)
            .filter(|k| self.journal.fingerprints[*k] == seen.fingerprint())
            .collect();
        if matching.is_empty() {
            return Err(self.explain(&seen, least, most));
        }
        let mut verdict = Ok(());
        for k in matching {
            verdict = self.judge_data(at, k);
            if verdict.is_ok() {
                break;
            }
        }
        verdict
    }

    /// The tree after `k` operations, and which file each inode was then.
    fn tree_after(&self, k: usize) -> (Names, HashMap<u64, u64>) {
        let mut names = self.journal.initial.clone();
        let mut serials = HashMap::new();
        for (index, op) in self.journal.name_ops[..k].iter().enumerate() {
            names.apply(op);
            if let (NameOp::Make { ino, .. }, Some(serial)) = (op, self.journal.serials.get(&index))
            {
                serials.insert(*ino, *serial);
            }
        }
        (names, serials)
    }

    fn explain(&self, seen: &Names, least: usize, most: usize) -> anyhow::Error {
        let fingerprints = &self.journal.fingerprints;
        let other = fingerprints.iter().position(|known| *known == seen.fingerprint());
        if let Some(k) = other {
            let step = &self.journal.steps[self.journal.name_steps[k.min(most.max(1) - 1)]];
            return anyhow::anyhow!(
                "the tree holds {k} operations on names; {least} were durable and {most} begun. \
                 First missing: {}",
                step.text
            );
        }
        // Not the tree of any moment: show what differs from the closest.
        let closest = (least..=most)
            .map(|k| (self.tree_after(k).0.differences(seen), k))
            .min_by_key(|(differences, _)| differences.len());
        let (mut differences, k) = closest.unwrap_or_default();
        differences.truncate(12);
        anyhow::anyhow!(
            "the tree is that of no moment between {least} and {most} operations on names; \
             closest is {k}:\n  {}",
            differences.join("\n  ")
        )
    }

    /// What each file may hold after a cut.
    fn contents_after(&self, at: u64) -> HashMap<u64, Content> {
        let steps = &self.journal.steps;
        let mut last_sync: HashMap<u64, usize> = HashMap::new();
        for (index, step) in steps.iter().enumerate() {
            if let What::SyncFile { serial } = &step.what {
                if step.acknowledged <= at {
                    last_sync.insert(*serial, index);
                }
            }
        }
        let mut contents: HashMap<u64, Content> = HashMap::new();
        for (index, step) in steps.iter().enumerate().take_while(|(_, step)| step.started < at) {
            match &step.what {
                What::Data { serial, op } => {
                    let content = contents.entry(*serial).or_default();
                    content.settle(last_sync.get(serial).is_some_and(|sync| *sync > index));
                    content.apply(op, step.acknowledged <= at);
                }
                What::SyncFile { serial } if step.acknowledged <= at => {
                    contents.entry(*serial).or_default().make_durable();
                }
                _ => {}
            }
        }
        contents
    }

    fn judge_data(&self, at: u64, k: usize) -> Result<()> {
        let (names, serials) = self.tree_after(k);
        let contents = self.contents_after(at);
        let nothing = Content::default();
        let mut seen = std::collections::HashSet::new();
        for (place, ino) in &names.entries {
            if names.inodes[ino].kind != Kind::File || !seen.insert(*ino) {
                continue;
            }
            let path = self.rig.point.join(names.path(place).unwrap_or_default());
            let serial = serials.get(ino).copied().unwrap_or(u64::MAX);
            let bytes = fs::read(&path).with_context(|| format!("read {path:?}"))?;
            if let Some(wrong) = contents.get(&serial).unwrap_or(&nothing).judge(&bytes) {
                bail!("{path:?} (file {serial}): {wrong}\n{}", self.history(serial, at));
            }
        }
        Ok(())
    }

    /// The last steps of a file before a cut.
    fn history(&self, serial: u64, at: u64) -> String {
        let of_file = self.journal.steps.iter().filter(|step| match &step.what {
            What::Data { serial: found, .. } | What::SyncFile { serial: found } => *found == serial,
            _ => false,
        });
        let begun = of_file.filter(|step| step.started < at);
        let lines: Vec<String> = begun
            .map(|step| format!("  {}..{}: {}", step.started, step.acknowledged, step.text))
            .collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Nothing but the files' own blocks is in use.
    fn judge_space(&self) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let mut blocks_bytes = 0;
        let mut seen = std::collections::HashSet::new();
        let mut pending = vec![self.rig.point.clone()];
        while let Some(dir) = pending.pop() {
            for found in fs::read_dir(dir)? {
                let found = found?;
                let meta = found.metadata()?;
                if meta.is_dir() {
                    pending.push(found.path());
                } else if seen.insert(meta.ino()) {
                    blocks_bytes += meta.blocks() * 512;
                }
            }
        }
        let used = used_bytes(&self.rig.point)?;
        let allowed = self.empty_bytes + blocks_bytes + LEAK_TOLERANCE_BYTES;
        ensure!(
            used <= allowed,
            "space is leaked: {used} bytes in use; empty it was {}, files hold {blocks_bytes}",
            self.empty_bytes
        );
        Ok(())
    }

    /// The file system works.
    fn use_it(&self) -> Result<()> {
        let path = self.rig.point.join("after-the-cut");
        let mut file = fs::File::create(&path).context("create after the power cut")?;
        file.write_all(&[7; 10_000]).context("write after the power cut")?;
        file.sync_all().context("fsync after the power cut")?;
        drop(file);
        ensure!(fs::read(&path)? == [7; 10_000], "what was written after the power cut differs");
        fs::remove_file(&path).context("unlink after the power cut")?;
        Ok(())
    }
}
