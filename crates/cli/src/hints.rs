//! Hints of servers name commands, and a server does not know how who asked names it, nor a buffer or a mount: here
//! those commands get what they need to be run as they stand.

use forebay_proto::control::ControlError;

/// How who asked named what a hint is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `--server ADDR`; empty at a mount.
    pub server: String,
    /// `--buffer NAME:` or `--buffer /mnt`, for commands about plans; empty if no buffer is meant.
    pub plans_of: String,
    /// The name of a served buffer; empty if none is meant.
    pub buffer: String,
}

impl Asked {
    /// The error, with a hint whose commands can be run as they stand.
    pub fn complete(&self, mut error: ControlError) -> ControlError {
        error.hint = error.hint.map(|hint| self.hint(&hint));
        error
    }

    /// Commands stand between backticks.
    fn hint(&self, hint: &str) -> String {
        let parts = hint.split('`').enumerate();
        let whole = |(number, part): (usize, &str)| match part.strip_prefix("forebay ") {
            Some(command) if number % 2 == 1 => format!("forebay {}", self.command(command)),
            _ => part.to_string(),
        };
        parts.map(whole).collect::<Vec<_>>().join("`")
    }

    fn command(&self, command: &str) -> String {
        let mut words = command.split(' ');
        match (words.next(), words.next()) {
            (Some("stage"), Some("status" | "wait" | "cancel" | "rate")) => {
                self.with(command, &["--buffer", "--server"])
            }
            (Some("buffer"), Some(what @ ("status" | "destroy" | "extend" | "lost"))) => {
                let rest: Vec<&str> = words.collect();
                let names_one = rest.iter().any(|word| !word.starts_with('-'));
                match names_one || self.buffer.is_empty() {
                    true => self.with(command, &["--server"]),
                    false => {
                        let first = ["buffer", what, self.buffer.as_str()];
                        let named = [&first[..], &rest[..]].concat();
                        self.with(&named.join(" "), &["--server"])
                    }
                }
            }
            // Another server than the one that was asked is to become the leader: not `pool leader`.
            (Some("buffer"), Some("list")) | (Some("pool"), Some("status")) => {
                self.with(command, &["--server"])
            }
            (Some("pool"), Some("forget")) if words.next().is_none() => {
                self.with("pool forget SERVER", &["--server"])
            }
            _ => command.to_string(),
        }
    }

    /// With those of the options that it does not have yet.
    fn with(&self, command: &str, options: &[&str]) -> String {
        let mut whole = command.to_string();
        for option in options {
            let given = if *option == "--buffer" { &self.plans_of } else { &self.server };
            if !given.is_empty() && !command.split(' ').any(|word| word == *option) {
                whole.push(' ');
                whole.push_str(given);
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(asked: &Asked, hint: &str) -> String {
        let error = ControlError::new("find staging plan", None, "there is none").hint(hint);
        asked.complete(error).hint.unwrap()
    }

    #[test]
    fn commands_of_a_servers_hints_can_be_run_as_they_stand() {
        let asked = Asked {
            server: "--server n1:7070".into(),
            plans_of: "--buffer sb2:".into(),
            buffer: "sb2".into(),
        };
        for (hint, wanted) in [
            (
                "see `forebay stage status`",
                "see `forebay stage status --buffer sb2: --server n1:7070`",
            ),
            (
                "see `forebay stage status 1 --buffer sb2:`",
                "see `forebay stage status 1 --buffer sb2: --server n1:7070`",
            ),
            (
                "`forebay buffer status` tells why",
                "`forebay buffer status sb2 --server n1:7070` tells why",
            ),
            (
                "if it is gone, `forebay buffer destroy --force` gives it back",
                "if it is gone, `forebay buffer destroy sb2 --force --server n1:7070` gives it back",
            ),
            (
                "is `forebay serve` running there? `forebay pool status` shows the servers",
                "is `forebay serve` running there? `forebay pool status --server n1:7070` shows the servers",
            ),
            (
                "give it up (`forebay pool forget`)",
                "give it up (`forebay pool forget SERVER --server n1:7070`)",
            ),
        ] {
            assert_eq!(told(&asked, hint), wanted);
            assert_eq!(told(&asked, wanted), wanted, "what is whole stays");
        }
        for other in [
            "`forebay pool leader --take-over` at another server of the pool",
            "files of a scratch buffer reach the PFS by `forebay stage out`",
            "`forebay wait` drains and waits",
            "try again: forebay stage status",
            "a lone ` of a name",
        ] {
            assert_eq!(told(&asked, other), other);
        }
    }

    #[test]
    fn at_a_mount_the_mount_is_named() {
        let asked = Asked { plans_of: "--buffer /mnt/fb".into(), ..Asked::default() };
        let wanted = "see `forebay stage status --buffer /mnt/fb`";
        assert_eq!(told(&asked, "see `forebay stage status`"), wanted);
        assert_eq!(
            told(&asked, "`forebay buffer status` tells why"),
            "`forebay buffer status` tells why"
        );
    }
}
