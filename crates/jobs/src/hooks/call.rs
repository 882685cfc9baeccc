//! The calling convention of DataWarp's `dw_wlm_cli`, as Slurm's burst_buffer/datawarp plugin uses it and
//! `burst_buffer.lua` too: `--function NAME` and options. No I/O.

use super::refusal::Refusal;
use forebay_proto::net::node::SessionName;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A call, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// `--function`.
    pub function: String,
    /// `--token`, or `-t` of a persistent buffer.
    pub token: Option<String>,
    /// `--job`: the batch script.
    pub job: Option<PathBuf>,
    /// `--user`, or `-u`.
    pub user: Option<u32>,
    /// `--groupid`.
    pub group: Option<u32>,
    /// `--capacity POOL:SIZE`, or `-C`.
    pub capacity: Option<String>,
    /// `--pathfile`.
    pub path_file: Option<PathBuf>,
    /// `--nodehostnamefile`: a name a line.
    pub node_file: Option<PathBuf>,
    /// `--nodes`: as Slurm writes a list of nodes, `n[1-3],m7`. Ours, for `burst_buffer.lua`.
    pub nodes: Option<String>,
    /// `--hurry`.
    pub hurry: bool,
    /// `-a`: access mode of a persistent buffer.
    pub access: Option<String>,
    /// `-T`: type of a persistent buffer.
    pub buffer_type: Option<String>,
}

impl Call {
    /// Reads the words after the program's name.
    ///
    /// # Errors
    /// What was not understood, in one line.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Call, String> {
        let mut call = Call::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name = word.to_string_lossy().into_owned();
            if name == "--hurry" {
                call.hurry = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{name} has no value"))?;
            let text = || value.to_string_lossy().into_owned();
            let number = || text().parse::<u32>().map_err(|_| format!("{name} {}: no id", text()));
            match name.as_str() {
                "--function" => call.function = text(),
                "--token" | "-t" => call.token = Some(text()),
                "--job" => call.job = Some(path(&value)),
                "--user" | "-u" => call.user = Some(number()?),
                "--groupid" => call.group = Some(number()?),
                "--capacity" | "-C" => call.capacity = Some(text()),
                "--pathfile" => call.path_file = Some(path(&value)),
                "--nodehostnamefile" | "--nidlistfile" => call.node_file = Some(path(&value)),
                "--nodes" => call.nodes = Some(text()),
                "-a" => call.access = Some(text()),
                "-T" => call.buffer_type = Some(text()),
                // Who asks for it: nothing depends on that.
                "--caller" | "-c" => {}
                _ => return Err(format!("unknown option {name}")),
            }
        }
        match call.function.is_empty() {
            true => Err("--function NAME is missing".into()),
            false => Ok(call),
        }
    }
}

/// A token as a name.
///
/// # Errors
/// If it is none.
pub fn token(text: Option<&str>) -> Result<SessionName, Refusal> {
    let text = text.ok_or_else(|| Refusal::new("--token is missing"))?;
    text.parse().map_err(|error| Refusal::new(&format!("{error}")))
}

fn path(value: &OsStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(value.as_bytes()))
}

/// Pool and bytes of `POOL:SIZE`, where Slurm writes the size in the largest unit that is exact: `flash:9552MiB`.
///
/// # Errors
/// What was not understood.
pub fn capacity(text: &str) -> Result<(&str, u64), String> {
    let bad = || format!("{text:?} is no POOL:SIZE");
    let (pool, size) = text.rsplit_once(':').ok_or_else(bad)?;
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let bytes: u64 = digits.parse().map_err(|_| bad())?;
    let factor = match &size[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "P" | "PiB" => 1 << 50,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "PB" => 1_000_000_000_000_000,
        _ => return Err(bad()),
    };
    Ok((pool, bytes.checked_mul(factor).ok_or_else(bad)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Call, String> {
        Call::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn calls_of_slurm_are_understood() {
        let setup = parse(
            "--function setup --token 17 --caller SLURM --user 1000 --groupid 100 \
             --capacity flash:9552MiB --job /var/s/job.17/script --nodehostnamefile /tmp/n",
        )
        .unwrap();
        assert_eq!((setup.user, setup.group), (Some(1000), Some(100)));
        assert_eq!(setup.node_file.as_deref(), Some("/tmp/n".as_ref()));
        // On a Cray the file has another name.
        let cray = parse("--function pre_run --token 17 --job s --nidlistfile /tmp/nids").unwrap();
        assert_eq!(cray.node_file.as_deref(), Some("/tmp/nids".as_ref()));
        let made = parse(
            "--function create_persistent -c CLI -t alpha -u 1000 -C flash:2013265920 -a striped -T scratch",
        )
        .unwrap();
        assert_eq!(
            (made.token.as_deref(), made.access.as_deref()),
            (Some("alpha"), Some("striped"))
        );
        assert!(parse("--function teardown --token 17 --job s --hurry").unwrap().hurry);
        for (bad, why) in [
            ("", "--function"),
            ("--function", "no value"),
            ("--function setup --user me", "no id"),
            ("--function setup --speed 9", "unknown option"),
        ] {
            assert!(parse(bad).unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_slurm_writes_them() {
        assert_eq!(capacity("wlm_pool:9552MiB"), Ok(("wlm_pool", 9552 << 20)));
        assert_eq!(capacity("p:0"), Ok(("p", 0)));
        assert_eq!(capacity("p:2013265920"), Ok(("p", 2_013_265_920)));
        for bad in ["p", "p:", "p:x", "p:3XB", "p:99999999999TiB"] {
            assert!(capacity(bad).is_err(), "{bad}");
        }
    }
}
