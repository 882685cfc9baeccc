//! `make install` and `make uninstall`: what was built is installed without cargo, a C program finds the library by
//! pkg-config and starts, and nothing is left afterwards.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::{LET_GO, run, try_run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A root's path as sudo sets it: no cargo.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// `make TARGET` for the executable under test.
fn make(target: &str, variables: &[String]) -> Command {
    let mut command = Command::new("make");
    command.env_clear().env("PATH", PATH).arg("-s").arg("-C").arg(tree()).arg(target);
    command.arg(format!("FOREBAY={}", binary().display())).args(variables);
    command
}

fn found_below(dir: &Path) -> Vec<String> {
    let said = run(Command::new("find").arg(dir).args(["-mindepth", "1", "-printf", "%P\n"]));
    let mut found: Vec<String> = said.lines().map(str::to_string).collect();
    found.sort();
    found
}

#[test]
fn what_was_built_is_installed_and_removed_again() {
    let base = tempfile::tempdir().unwrap();
    let dest = base.path().join("dest");
    // Somebody else's.
    fs::create_dir_all(dest.join("opt/fb/lib")).unwrap();
    fs::write(dest.join("opt/fb/lib/other.so"), "").unwrap();
    let before = found_below(&dest);
    let variables =
        [format!("DESTDIR={}", dest.display()), "PREFIX=/opt/fb".into(), "SBINDIR=/sbin".into()];
    run(&mut make("install", &variables));
    let version = run(Command::new(binary()).arg("--version"));
    let version = version.trim().rsplit(' ').next().unwrap().to_string();
    let library = format!("libforebay.so.0.{version}");
    let lib = dest.join("opt/fb/lib");
    assert!(fs::symlink_metadata(lib.join(&library)).unwrap().is_file());
    for (link, to) in [
        ("libforebay.so.0", library.as_str()),
        ("libforebay.so", "libforebay.so.0"),
        ("libdatawarp.so", "libforebay.so.0"),
    ] {
        assert_eq!(fs::read_link(lib.join(link)).unwrap(), Path::new(to));
    }
    let helper = fs::read_link(dest.join("sbin/mount.fuse.forebay")).unwrap();
    assert_eq!(helper, Path::new("/opt/fb/bin/forebay"));
    for (name, holds) in [
        ("lib/pkgconfig/forebay.pc", "prefix=/opt/fb\n"),
        ("lib/systemd/system/forebay@.service", "ExecStart=/opt/fb/bin/forebay mount "),
        ("lib/systemd/system/forebay-serve.service", "ExecStart=/opt/fb/bin/forebay serve "),
        ("share/man/man1/forebay-run.1", "--discard".replace('-', "\\-").as_str()),
        ("share/bash-completion/completions/forebay", "forebay"),
        ("share/doc/forebay/README.md", "# Forebay"),
        ("share/doc/forebay/docs/tutorial.md", "forebay mount"),
        ("share/doc/forebay/docs/how-to/cache.md", "forebay mount --cache"),
        ("share/doc/forebay/docs/internals/WIRE.md", "# "),
        ("share/doc/forebay/examples/torch/train.py", "CommitWriter"),
        ("include/forebay.h", "fb_commit"),
        ("include/datawarp.h", "dw_stage_file_out"),
        ("lib/pkgconfig/cray-datawarp.pc", "-ldatawarp"),
    ] {
        let text = fs::read_to_string(dest.join("opt/fb").join(name)).unwrap();
        assert!(text.contains(holds), "{name} has no {holds}");
    }
    // What an older version had and this one has not goes with the next installation.
    let old = "/opt/fb/share/man/man1/forebay-old.1";
    let list = dest.join("opt/fb/share/forebay/installed");
    fs::write(&list, fs::read_to_string(&list).unwrap() + "file " + old + "\n").unwrap();
    let old = dest.join(&old[1..]);
    fs::write(&old, "").unwrap();
    let installed = found_below(&dest);
    run(&mut make("install", &variables));
    assert!(!old.exists());
    assert_eq!(found_below(&dest).len(), installed.len() - 1);
    run(&mut make("uninstall", &variables));
    assert_eq!(found_below(&dest), before);
}

#[test]
fn an_installation_of_what_was_not_built_says_what_to_do() {
    let base = tempfile::tempdir().unwrap();
    let variables = [
        format!("FOREBAY={}", base.path().join("target/release/forebay").display()),
        format!("DESTDIR={}", base.path().join("dest").display()),
    ];
    let (done, said) = try_run(&mut make("install", &variables));
    assert!(!done && said.contains("run `make build` first"), "{said}");
    assert_eq!(found_below(base.path()), Vec::<String>::new());
}

/// Its own /usr/local and /etc: the default prefix and the linker's cache are used as they are, and those of the machine
/// stay as they are. What other tests have mounted is not held there.
#[test]
fn a_c_program_starts_after_the_installation() {
    let base = tempfile::tempdir().unwrap();
    let program = base.path().join("program.c");
    let text = "#include <forebay.h>\n#include <stdio.h>\nint main(void) { return puts(fb_version()) < 0; }\n";
    fs::write(&program, text).unwrap();
    // Of DataWarp's calls, on a path that is in no buffer.
    let text = "#include <datawarp.h>\n#include <errno.h>\n\
                int main(void) { return dw_wait_file_stage(\"/dev/null\") != -ENOTTY; }\n";
    fs::write(base.path().join("staging.c"), text).unwrap();
    let script = r#"
mkdir etc && mount -t tmpfs etc etc && cp -a /etc/. etc/ && mount --bind etc /etc
mount -t tmpfs local /usr/local
"$@" install SBINDIR=/usr/local/sbin 2> warned
[ ! -s warned ]
[ "$(forebay --version)" = "forebay $(pkg-config --modversion forebay)" ]
cc -o program program.c $(pkg-config --cflags --libs forebay)
./program > said
[ "$(cat said)" = "$(pkg-config --modversion forebay)" ]
cc -o staging staging.c $(pkg-config --cflags --libs cray-datawarp)
./staging
"$@" uninstall SBINDIR=/usr/local/sbin
! ./program 2> /dev/null
find /usr/local -mindepth 1"#;
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", format!("/usr/local/bin:{PATH}")).current_dir(base.path());
    command.args(["--mount", "sh", "-euc", &format!("{LET_GO}{script}"), "sh"]);
    command.args(["make", "-s", "-C"]).arg(tree()).arg(format!("FOREBAY={}", binary().display()));
    let said = run(&mut command);
    let left: Vec<&str> = said.lines().filter(|line| !line.starts_with("installed ")).collect();
    assert_eq!(left, [""; 0], "left after uninstall");
}
