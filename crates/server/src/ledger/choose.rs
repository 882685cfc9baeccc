//! Which servers of the pool a new buffer goes to: those with the most room.

use super::errors::{no_space, of};
use super::{Ledger, show};
use forebay_policy::placement::choose_servers;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferSpec;

const WHAT: &str = "create";

impl Ledger {
    /// The servers of the parts, in order, and the capacity of each part.
    pub(super) fn choose(&self, spec: &BufferSpec) -> Result<(Vec<ServerId>, u64), ControlError> {
        let survey = self.survey_all();
        let free: Vec<(u64, ServerId)> = survey
            .iter()
            .filter_map(|(&server, facts)| Some((show::free_bytes(facts.as_ref()?), server)))
            .collect();
        let (wanted, there) = (usize::from(spec.servers), free.len());
        let Some(free) = choose_servers(free, wanted) else {
            let why = format!("{wanted} servers were asked for, the pool has {there}");
            return Err(of(WHAT, &spec.name, &why, libc::EINVAL)
                .hint("`forebay pool status` shows which servers answer"));
        };
        let count = free.len();
        let part = spec.capacity_bytes.div_ceil(count.max(1) as u64);
        let part_bytes = self.rounded(WHAT, &spec.name, part)?;
        match free.last() {
            Some(&(least, server)) if least < part_bytes => {
                let mut error = no_space(WHAT, &spec.name, part_bytes, least);
                if count > 1 {
                    let host = self.host_of(server);
                    error.why = format!(
                        "{} (that is server {host}; each of {count} servers has a part)",
                        error.why
                    );
                }
                Err(error)
            }
            _ => Ok((free.into_iter().map(|(_, server)| server).collect(), part_bytes)),
        }
    }
}
