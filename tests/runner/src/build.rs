//! Builds the executables of tests by cargo, and asks each for its tests.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What programs link to.
const LIBRARY: &str = "libforebay.so";

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its full name: that of its executable, and that in it.
    pub name: String,
    /// Its name in its executable.
    pub inner: String,
    /// The executable.
    pub executable: PathBuf,
    /// The directory of its crate, in which it runs.
    pub directory: PathBuf,
}

/// What was built.
pub struct Built {
    /// All tests, in the order of their executables.
    pub tests: Vec<Test>,
    /// Cargo's directory: `target`.
    pub target: PathBuf,
    /// Environment variables for tests: the executable that system tests run.
    pub variables: Vec<(String, PathBuf)>,
    /// Removed at the end.
    _reachable: Reachable,
}

/// The executable under test where all users can run it: tests run it as other users, who cannot enter a checkout below
/// a directory of root's such as /root. Then it is a copy, with the libraries beside it.
#[derive(Default)]
struct Reachable {
    executable: PathBuf,
    copies: Option<PathBuf>,
}

impl Reachable {
    fn of(built: &Path) -> Result<Reachable> {
        let is_open = |dir: &Path| {
            std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
        };
        if built.ancestors().skip(1).all(is_open) {
            return Ok(Reachable { executable: built.to_path_buf(), copies: None });
        }
        let dir = std::env::temp_dir().join(format!("forebay-tested-{}", std::process::id()));
        let failed = || format!("cannot copy what is tested to {}", dir.display());
        std::fs::create_dir(&dir).with_context(failed)?;
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).with_context(failed)?;
        let executable = dir.join(built.file_name().unwrap_or_default());
        let reachable = Reachable { executable, copies: Some(dir.clone()) };
        std::fs::copy(built, &reachable.executable).with_context(failed)?;
        let from = built.parent().context("the executable is in no directory")?;
        for entry in std::fs::read_dir(from)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "so") {
                let to = dir.join(path.file_name().unwrap_or_default());
                std::fs::copy(&path, to).with_context(failed)?;
            }
        }
        Ok(reachable)
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        if let Some(dir) = &self.copies {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

fn cargo(workspace: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace);
    command
}

/// Builds the tests and the executable that they run, or the unit tests alone. Cargo shows its own messages.
pub fn build(workspace: &Path, is_units_only: bool) -> Result<Built> {
    let mut cargo = cargo(workspace);
    cargo.args(["test", "--workspace", "--locked", "--no-run"]);
    if is_units_only {
        cargo.args(["--lib", "--bins"]);
    }
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("no output of cargo")?;
    let (mut tests, mut variables, mut target) = (Vec::new(), Vec::new(), None);
    let (mut under_test, mut library) = (None, None);
    let mut reachable = Reachable::default();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("cargo wrote no JSON")?;
        library = files(&message).find(|file| file.ends_with(LIBRARY)).or(library);
        let Some(executable) = message["executable"].as_str().map(PathBuf::from) else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.parent().unwrap_or(workspace).to_path_buf();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = message["target"]["name"].as_str().unwrap_or_default();
        if message["profile"]["test"].as_bool() == Some(true) {
            // target/PROFILE/deps/NAME
            target = executable.ancestors().nth(3).map(Path::to_path_buf);
            let prefix = prefix(&directory, kind, name);
            tests.extend(list(&executable, &directory, &prefix)?);
        } else if name == "forebay" {
            under_test = Some(executable);
        }
    }
    if !child.wait()?.success() {
        bail!("the tests cannot be built: see above");
    }
    let target = target.context("cargo built no tests")?;
    // Snapshot tests would each ask cargo for it.
    variables.push(("INSTA_WORKSPACE_ROOT".to_string(), workspace.to_path_buf()));
    let given = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    if let Some(executable) = &under_test {
        // Of a release some decisions cannot be changed for a test.
        variables.push(("FOREBAY_BIN_OF_TESTS".to_string(), executable.clone()));
        if given.is_none() {
            if let Some(library) = library {
                put_beside(&library, executable)?;
            }
            build_preloaded(workspace)?;
        }
    }
    if let Some(executable) = given.or(under_test) {
        reachable = Reachable::of(&executable)?;
        variables.push(("FOREBAY_BIN".to_string(), reachable.executable.clone()));
    }
    Ok(Built { tests, target, variables, _reachable: reachable })
}

/// The libraries that `forebay trace` and `forebay exec` preload. They have no tests of their own, so a build of tests
/// leaves them out. They are built with all else: by themselves they would have crates compiled with other features.
fn build_preloaded(workspace: &Path) -> Result<()> {
    let mut cargo = cargo(workspace);
    cargo.args(["build", "--quiet", "--locked", "--workspace", "--lib", "--tests"]);
    match cargo.status().context("cannot run cargo")?.success() {
        true => Ok(()),
        false => bail!("what forebay trace and forebay exec preload cannot be built: see above"),
    }
}

fn files(message: &Value) -> impl Iterator<Item = PathBuf> + '_ {
    message["filenames"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(PathBuf::from)
}

/// Tests look for the library beside the executable, where `cargo build` puts it and `cargo test` does not.
fn put_beside(library: &Path, executable: &Path) -> Result<()> {
    let wanted = executable.with_file_name(LIBRARY);
    if library == wanted {
        return Ok(());
    }
    let _ = std::fs::remove_file(&wanted);
    std::fs::hard_link(library, &wanted)
        .or_else(|_| std::fs::copy(library, &wanted).map(drop))
        .with_context(|| format!("cannot make {}", wanted.display()))
}

/// How the names of an executable's tests begin: `server` for the unit tests of crates/server,
/// `client/integration` for crates/client/tests/integration, `system` for tests/tests/system.
fn prefix(directory: &Path, kind: &str, name: &str) -> String {
    let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match kind {
        "test" if package == "tests" => name.to_string(),
        "test" => format!("{package}/{name}"),
        _ => package,
    }
}

fn list(executable: &Path, directory: &Path, prefix: &str) -> Result<Vec<Test>> {
    let mut command = Command::new(executable);
    // Tests marked `ignored` are measurements and parts of others: they run by hand.
    let output = command
        .current_dir(directory)
        .args(["--list", "--format", "terse"])
        .output()
        .with_context(|| format!("cannot run {}", executable.display()))?;
    let ignored = Command::new(executable)
        .current_dir(directory)
        .args(["--list", "--format", "terse", "--ignored"])
        .output()?;
    if !output.status.success() || !ignored.status.success() {
        bail!("{} does not list its tests", executable.display());
    }
    let names = |output: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(output);
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect()
    };
    let ignored = names(&ignored.stdout);
    let all = names(&output.stdout).into_iter().filter(|name| !ignored.contains(name));
    let test = |inner: String| Test {
        name: format!("{prefix}::{inner}"),
        inner,
        executable: executable.to_path_buf(),
        directory: directory.to_path_buf(),
    };
    Ok(all.map(test).collect())
}
