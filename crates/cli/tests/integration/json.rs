//! What `--json` prints, of all commands: each key stands in docs/JSON.md with its type, which is the same wherever the
//! key is; every line is an object; and a command that fails ends with a line that is its error.

use crate::common::pool::Pool;
use crate::common::{Flash, Rig, text};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

fn document() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/JSON.md")).unwrap()
}

/// `| \`key\` | type | meaning |` of the document.
fn documented() -> BTreeMap<String, String> {
    let text = document();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(key, rest)| (key.into(), rest.split(" | ").next().unwrap().into())).collect()
}

/// Commands and their subcommands that have --json, by their help.
fn commands() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![Vec::<String>::new()];
    while let Some(command) = waiting.pop() {
        let output =
            Command::new(crate::common::program()).args(&command).arg("--help").output().unwrap();
        let help = text(&output.stdout);
        let below = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let below = below.split("\n\n").next().unwrap().lines();
        // A name stands two columns in, what goes on of a description further in.
        let names = below.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        // `bench` prints what IOR prints, `report` a report of a trace, `sim` has keys of its own (tests/sim.rs).
        for name in names.filter(|name| !["", "help", "bench", "report", "sim"].contains(name)) {
            waiting.push([command.clone(), vec![name.to_string()]].concat());
        }
        if help.contains("--json") {
            found.insert(command.join(" "));
        }
    }
    found
}

/// What commands printed.
#[derive(Default)]
struct Seen {
    documented: BTreeMap<String, String>,
    commands: RefCell<BTreeSet<String>>,
    wrong: RefCell<BTreeSet<String>>,
}

impl Seen {
    /// Runs a command, which must end as said, and looks at what it prints. The last line is given.
    #[track_caller]
    fn run(&self, name: &str, command: &mut Command, ok: bool) -> Value {
        let output = command.output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.success(), ok, "{name}: {out}{err}");
        self.commands.borrow_mut().insert(name.into());
        let mut last = Value::Null;
        for line in out.lines() {
            last = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
            if !last.is_object() {
                self.wrong.borrow_mut().insert(format!("{name}: a line is no object: {line}"));
            }
            self.look(name, &last);
        }
        let told = ["state", "valid", "sound"].iter().any(|key| last.get(key).is_some());
        if !ok && !told {
            assert!(
                last["error"]["why"].is_string(),
                "{name}: it failed without an error: {out}{err}"
            );
        }
        last
    }

    fn look(&self, name: &str, value: &Value) {
        match value {
            Value::Object(object) => {
                object.iter().for_each(|(key, value)| self.key(name, key, value))
            }
            Value::Array(list) => {
                // A path that is no text is an array of its bytes.
                for item in list.iter().filter(|item| !item.is_number()) {
                    if item.is_array() {
                        self.note(name, "an array in an array", value);
                    }
                    self.look(name, item);
                }
            }
            _ => {}
        }
    }

    fn note(&self, name: &str, what: &str, value: &Value) {
        self.wrong.borrow_mut().insert(format!("{name}: {what}: {value}"));
    }

    fn key(&self, name: &str, key: &str, value: &Value) {
        let Some(kind) = self.documented.get(key) else {
            return self.note(name, &format!("`{key}` is not in docs/JSON.md"), value);
        };
        let hex = |value: &Value, digits: usize| {
            value.as_str().is_some_and(|text| {
                text.len() == digits
                    && text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
            })
        };
        let fits = match kind.as_str() {
            _ if value.is_null() => true,
            "text" => value.is_string(),
            "path" => {
                value.is_string() || value.as_array().is_some_and(|b| b.iter().all(Value::is_u64))
            }
            "integer" => value.is_i64() || value.is_u64(),
            "integer or text" => value.is_u64() || value.is_string(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "object" | "map" | "map of maps" => value.is_object(),
            "array" => value.is_array(),
            "time" => value.as_str().is_some_and(|text| text.len() >= 20 && text.ends_with('Z')),
            "8 hex digits" => hex(value, 8),
            "16 hex digits" => hex(value, 16),
            "32 hex digits" => hex(value, 32),
            other => panic!("docs/JSON.md has no type {other:?} (of {key})"),
        };
        if !fits {
            self.note(name, &format!("`{key}` is no {kind}"), value);
        }
        let is_unit = |ends: &[&str], is: bool| {
            ends.iter().any(|end| key.ends_with(end)) && !value.is_null() && !is
        };
        if is_unit(
            &["_bytes", "_count", "_ms"],
            value.is_u64() || value.is_string() || value.is_i64(),
        ) || is_unit(&["_s"], value.is_number())
        {
            self.note(name, &format!("`{key}` does not have its unit's type"), value);
        }
        match (kind.as_str(), value) {
            // Its keys are names: of calls, of errnos.
            ("map", Value::Object(map)) => map.values().for_each(|value| self.look(name, value)),
            ("map of maps", Value::Object(maps)) => {
                let counts =
                    maps.values().filter_map(Value::as_object).flat_map(|map| map.values());
                counts.for_each(|value| self.look(name, value));
            }
            _ => self.look(name, value),
        }
    }
}

struct Forebay<'a> {
    seen: &'a Seen,
    make: &'a dyn Fn() -> Command,
}

impl Forebay<'_> {
    /// `name` and then the arguments.
    #[track_caller]
    fn ends(&self, ok: bool, name: &str, arguments: &[&OsStr]) -> Value {
        let mut command = (self.make)();
        command.args(name.split(' ')).arg("--json").args(arguments);
        self.seen.run(name, &mut command, ok)
    }

    #[track_caller]
    fn done(&self, name: &str, arguments: &[&OsStr]) -> Value {
        self.ends(true, name, arguments)
    }
}

fn os<'a>(arguments: &[&'a str]) -> Vec<&'a OsStr> {
    arguments.iter().map(|argument| OsStr::new(*argument)).collect()
}

/// A buffer of its own, a job, a store without a mount.
fn scratch(seen: &Seen) {
    let rig = Rig::new(Flash::Memory);
    let make = || {
        let mut command = Command::new(crate::common::program());
        command.env("FOREBAY_FLASH", &rig.flash).env_remove("TMPDIR").env_remove("FOREBAY_SERVER");
        command
    };
    let forebay = Forebay { seen, make: &make };
    let (mnt, base) = (rig.mnt.as_os_str(), rig.base());
    let source = base.join("in");
    fs::write(&source, vec![1; 100_000]).unwrap();
    let at = |name: &str| rig.mnt.join(name);
    forebay.done("mount", &[&os(&["--scratch", "64MiB"])[..], &[mnt]].concat());
    forebay.done("stage in", &[source.as_os_str(), at("f").as_os_str()]);
    let out = base.join("out");
    forebay.done("stage out", &[OsStr::new("--dry-run"), at("f").as_os_str(), out.as_os_str()]);
    let plan =
        forebay.done("stage out", &[OsStr::new("--no-wait"), at("f").as_os_str(), out.as_os_str()]);
    let number = plan["plan"].to_string();
    // Other tests' buffers may be mounted meanwhile.
    forebay.done("stage wait", &[OsStr::new("--buffer"), mnt, OsStr::new(&number)]);
    let nowhere = base.join("no/such/place/f");
    let failed = forebay.ends(false, "stage out", &[at("f").as_os_str(), nowhere.as_os_str()]);
    assert_eq!(failed["state"], "failed");
    forebay.done("stage status", &[mnt]);
    forebay.done("stage status", &[OsStr::new("--buffer"), mnt, OsStr::new(&number)]);
    forebay.ends(false, "stage rate", &os(&["4711", "1MiB"]));
    forebay.ends(false, "stage cancel", &os(&["4711"]));
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/x"), b"x").unwrap();
    forebay.done(
        "commit",
        &[at("tree").as_os_str(), OsStr::new("--to"), base.join("published").as_os_str()],
    );
    forebay.done("verify", &[base.join("published").as_os_str()]);
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/slow-job/before");
    let exported = base.join("trace.json");
    let to = [os(&["--to", "chrome", "-o"]), vec![exported.as_os_str(), trace.as_os_str()]];
    forebay.done("trace export", &to.concat());
    let offsets = ["--show-offsets", "-N", "2", "-t", "4k", "-b", "8k", "-o", "f"];
    let last = forebay.done("bench ior", &os(&offsets));
    assert_eq!((&last["transfer"], &last["rank"]), (&"read".into(), &1.into()), "{last}");
    assert_eq!((&last["offset_bytes"], &last["size_bytes"]), (&12_288.into(), &4096.into()));
    assert_eq!(last["path"], "f");
    forebay.ends(false, "verify", &[OsStr::new("/no/such/place")]);
    forebay.done("commit", &[OsStr::new("--status"), mnt]);
    forebay.done("stripe", &[at("f").as_os_str(), at("tree").as_os_str()]);
    forebay.done("publish", &[at("tree").as_os_str()]);
    forebay.done("publish", &[OsStr::new("--final"), at("tree").as_os_str()]);
    forebay.ends(false, "publish", &[base.as_os_str()]);
    forebay.done("stripe set", &[OsStr::new("--count"), OsStr::new("all"), at("tree").as_os_str()]);
    for path in [mnt, at("f").as_os_str()] {
        forebay.done("status", &[path]);
    }
    forebay.done("status", &[]);
    forebay.done("events", &[mnt]);
    forebay.done("top", &[OsStr::new("--once"), mnt]);
    forebay.done("umount", &[OsStr::new("--keep"), mnt]);
    forebay.done("check", &[mnt]);
    forebay.done("status", &[]);
    forebay.ends(false, "check", &[base.as_os_str()]);
    for name in ["umount", "status", "events", "top", "commit", "stripe", "stage status", "flush"] {
        forebay.ends(false, name, &[OsStr::new("/proc/self")]);
    }
    forebay.ends(false, "mount", &os(&["--scratch", "1MiB", "/no/such/place"]));
    // A wrong command line, too.
    forebay.ends(false, "mount", &os(&["--no-such-option"]));
    forebay.ends(false, "stage in", &[]);

    let script = base.join("job.sh");
    let lines = format!(
        "#!/bin/bash\n#DW jobdw type=scratch access_mode=striped capacity=32MiB\n\
         #DW stage_in type=file source={} destination=$DW_JOB_STRIPED/in\n\
         cat $DW_JOB_STRIPED/in > /dev/null\n",
        source.display()
    );
    fs::write(&script, lines).unwrap();
    forebay.done("validate", &[script.as_os_str()]);
    let slurm = base.join("slurm.sh");
    let lines = "#!/bin/bash\n#DW persistentdw name=alpha\n\
        #DW swap 1GiB\n#BB create_persistent name=beta capacity=1GiB\n#BB destroy_persistent name=gamma\n\
        #DW stage_in type=file source=/p/x destination=$DW_PERSISTENT_STRIPED_alpha/x\n";
    fs::write(&slurm, lines).unwrap();
    forebay.done("validate", &[OsStr::new("--slurm"), slurm.as_os_str()]);
    let limited = base.join("limited.sh");
    let lines = "#!/bin/bash\n\
        #DW jobdw type=scratch access_mode=private(MFS=1MiB,MFC=10) capacity=32MiB\n";
    fs::write(&limited, lines).unwrap();
    let told = forebay.done("validate", &[limited.as_os_str()]);
    let limits = serde_json::json!({ "max_file_bytes": 1_048_576, "max_files": 10 });
    assert_eq!(told["request"]["limits"], limits, "{told}");
    forebay.done("run", &[script.as_os_str()]);
    fs::write(base.join("bad.sh"), "#!/bin/bash\n#DW jobdw type=none\n").unwrap();
    let refused = make().args(["validate", "--json"]).arg(base.join("bad.sh")).output().unwrap();
    assert!(!refused.status.success());
    serde_json::from_slice::<Value>(&refused.stdout).unwrap();
    let stores = rig.stores();
    for store in stores.iter().filter(|store| store.join("store.json").exists()) {
        forebay_store::flash::Store::discard_dir(store).unwrap();
    }
}

/// A cache of its own.
fn cache(seen: &Seen) {
    let rig = Rig::new(Flash::Memory);
    let make = || {
        let mut command = Command::new(crate::common::program());
        command.env("FOREBAY_FLASH", &rig.flash).env_remove("TMPDIR").env_remove("FOREBAY_SERVER");
        command
    };
    let forebay = Forebay { seen, make: &make };
    let pfs = rig.base().join("pfs");
    fs::create_dir(&pfs).unwrap();
    fs::write(pfs.join("old"), vec![5; 100_000]).unwrap();
    let mnt = rig.mnt.as_os_str();
    let cached = os(&["--capacity", "64MiB", "--drain", "never", "--cache"]);
    forebay.done("mount", &[&cached[..], &[pfs.as_os_str(), mnt]].concat());
    fs::write(rig.mnt.join("new"), vec![7; 100_000]).unwrap();
    let at = |name: &str| rig.mnt.join(name).into_os_string();
    forebay.done("status", &[&at("new")]);
    forebay.done("status", &[mnt]);
    forebay.done("flush", &[&at("new")]);
    forebay.done("wait", &[mnt]);
    forebay.done("warm", &[&at("old")]);
    forebay.done("pin", &[&at("old")]);
    forebay.done("status", &[&at("old")]);
    forebay.done("invalidate", &[&at("new")]);
    forebay.done("drain-rate", &[mnt, OsStr::new("100MiB")]);
    // Both sides change a file.
    fs::write(rig.mnt.join("new"), b"ours").unwrap();
    fs::write(pfs.join("new"), b"theirs, and longer").unwrap();
    let waited =
        make().args(["wait", "--json", "--timeout", "20"]).arg(at("new")).output().unwrap();
    assert!(!waited.status.success(), "{}", text(&waited.stdout));
    text(&waited.stdout).lines().for_each(|line| {
        serde_json::from_str::<Value>(line).unwrap();
    });
    forebay.done("status", &[&at("new")]);
    forebay.done("resolve", &[OsStr::new("--keep"), OsStr::new("theirs"), &at("new")]);
    for name in ["wait", "warm", "pin", "invalidate"] {
        forebay.ends(false, name, &[OsStr::new("/proc/self")]);
    }
    forebay.ends(false, "resolve", &os(&["--keep", "ours", "/proc/self"]));
    forebay.ends(false, "drain-rate", &os(&["/proc/self", "1MiB"]));
    forebay.done("events", &[mnt]);
    forebay.done("top", &[OsStr::new("--once"), mnt]);
    forebay.done("umount", &[mnt]);
}

/// Ends a process in the background.
fn procs_end(pid: i64) {
    // SAFETY: a plain number of a process that this test has started.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
}

/// Servers: all commands that speak with them.
fn served(seen: &Seen) {
    let mut pool = Pool::new(&["64MiB", "64MiB", "64MiB"]);
    // What `serve` printed of itself.
    seen.commands.borrow_mut().insert("serve".into());
    seen.look("serve", &pool.servers[0].up);
    let make = || pool.command(&[]);
    let forebay = Forebay { seen, make: &make };
    let agent = pool.rig.base().join("jobs");
    let listen = format!("unix:{}", pool.rig.base().join("agent.sock").display());
    let agent =
        [&os(&["--background", "--listen", &listen, "--mount-root"])[..], &[agent.as_os_str()]]
            .concat();
    let up = forebay.done("agent", &agent);
    procs_end(up["pid"].as_i64().unwrap());
    let site = pool.rig.base().join("forebay.conf");
    fs::write(&site, format!("state_dir = {:?}\n", pool.rig.base().join("state"))).unwrap();
    let rescue = |more: &[&str], ok: bool| {
        let mut command = pool.command(&["rescue", "--json"]);
        seen.run("rescue", command.args(more).env("FOREBAY_CONF", &site), ok);
    };
    rescue(&[], true);
    rescue(&["4711"], false);
    let mut reconcile = pool.command(&["reconcile", "--json"]);
    // Nobody answers as squeue here.
    seen.run(
        "reconcile",
        reconcile.env("FOREBAY_CONF", &site).env("PATH", "/no/such/place"),
        false,
    );
    forebay.ends(false, "agent", &os(&["--background", "--listen", "unix:/no/such/place/s"]));
    let server = ["--server", pool.servers[1].tcp.as_str()];
    let with = |more: &[&'static str]| [os(more), os(&server).to_vec()].concat();
    let create = ["b", "--capacity", "48MiB", "--servers", "3", "--store", "directory"];
    forebay.done("buffer create", &with(&create));
    forebay.done("buffer list", &with(&[]));
    forebay.done("buffer extend", &with(&["b", "--capacity", "96MiB"]));
    let source = pool.rig.base().join("in");
    fs::create_dir(&source).unwrap();
    for number in 0..9 {
        fs::write(source.join(number.to_string()), vec![1; 10_000]).unwrap();
    }
    forebay
        .done("stage in", &[&with(&[])[..], &[source.as_os_str(), OsStr::new("b:/in")]].concat());
    forebay.done("stage status", &with(&["b:"]));
    forebay.done("status", &with(&["b:/in/1"]));
    forebay.done("buffer status", &with(&["b"]));
    let mnt = pool.rig.mnt.to_str().unwrap();
    forebay.done("mount", &[&with(&["--buffer", "b"])[..], &os(&[mnt])].concat());
    forebay.done("status", &os(&[mnt]));
    forebay.done("status", &os(&[&format!("{mnt}/in/1")]));
    forebay.done("status", &[]);
    forebay.done("top", &with(&["--once"]));
    forebay.done("umount", &os(&[mnt]));
    forebay.done("events", &with(&["b:"]));
    forebay.done("events", &with(&[]));
    forebay.done("pool status", &with(&[]));
    forebay.ends(false, "buffer status", &with(&["none"]));
    forebay.ends(false, "buffer lost", &with(&["none"]));
    forebay.ends(false, "buffer extend", &with(&["none", "--capacity", "96MiB"]));
    forebay.ends(false, "buffer create", &with(&["c", "--capacity", "96GiB"]));
    forebay.ends(false, "pool leader", &with(&["--take-over"]));
    let ids = [pool.servers[0].id.clone(), pool.servers[2].id.clone()];
    forebay.ends(false, "pool forget", &[&with(&[])[..], &os(&[&ids[1]])].concat());
    let nobody = os(&["--server", "127.0.0.1:1"]);
    for name in ["buffer list", "pool status", "events", "top"] {
        forebay.ends(false, name, &nobody);
    }
    forebay.ends(false, "buffer destroy", &[&os(&["b"])[..], &nobody].concat());
    forebay.ends(
        false,
        "serve",
        &os(&["--capacity", "1MiB", "--listen", "127.0.0.1:0", "--flash", "/no/such"]),
    );
    pool.kill(2);
    let make = || pool.command(&[]);
    let forebay = Forebay { seen, make: &make };
    let server = ["--server", pool.servers[1].tcp.as_str()];
    let with = |more: &[&'static str]| [os(more), os(&server).to_vec()].concat();
    forebay.done("pool forget", &[&with(&[])[..], &os(&[&ids[1]])].concat());
    forebay.done("buffer lost", &with(&["b"]));
    forebay.done("buffer status", &with(&["b"]));
    forebay.done("top", &with(&["--once"]));
    forebay.done("buffer destroy", &with(&["b", "--force"]));
    pool.kill(0);
    let make = || pool.command(&[]);
    let forebay = Forebay { seen, make: &make };
    let server = ["--server", pool.servers[1].tcp.as_str()];
    let kept = forebay.done("pool leader", &[&os(&["--take-over"])[..], &os(&server)].concat());
    assert_eq!(kept["server"], pool.servers[1].id.as_str());
}

#[test]
fn all_commands_print_the_keys_of_the_document() {
    crate::common::must_be_root();
    let seen = Seen { documented: documented(), ..Seen::default() };
    scratch(&seen);
    cache(&seen);
    served(&seen);
    let wrong = seen.wrong.borrow();
    assert!(wrong.is_empty(), "{}", wrong.iter().cloned().collect::<Vec<_>>().join("\n"));
    let missing: Vec<_> = commands().difference(&seen.commands.borrow()).cloned().collect();
    assert!(missing.is_empty(), "commands with --json that this test does not run: {missing:?}");
}

#[test]
fn the_document_has_each_key_once() {
    let text = document();
    let keys: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let unique: BTreeSet<_> = keys.iter().collect();
    assert_eq!(keys.len(), unique.len(), "a key stands there twice");
}
