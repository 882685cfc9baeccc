//! `forebay rescue`: jobs of a scheduler whose results did not all reach the PFS.

use crate::args::RescueArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::scheduler::SiteBack;
use forebay_jobs::hooks::session::{Session, Sessions};
use forebay_jobs::hooks::site::Site;
use forebay_jobs::hooks::{Hooks, Refusal};
use forebay_proto::control::ControlError;
use forebay_proto::size::format_bytes;
use serde_json::{Value, json};

/// The site, which must be configured here.
pub fn site() -> Result<Site, ControlError> {
    let path = Site::path();
    let hint = "run it on the host of slurmctld; docs/OPERATIONS.md says what stands in that file";
    Site::load(&path)?.ok_or_else(|| {
        ControlError::new("read the site's configuration", Some(&path), "there is none")
            .errno(libc::ENOENT)
            .hint(hint)
    })
}

/// Runs the command.
pub fn run(args: RescueArgs) -> Outcome {
    let site = site()?;
    let sessions = Sessions::open(&site.state_dir)?;
    let back = SiteBack::new(&site);
    let hooks = Hooks::new(&site, &sessions, &back);
    let failed = |what: &str, Refusal(why): Refusal| ControlError::new(what, None, &why);
    let Some(name) = &args.name else {
        let kept = hooks.rescue.list().map_err(|why| failed("list the kept jobs", why))?;
        if args.json {
            print_json(&json!({ "kept_jobs": kept.iter().map(shown).collect::<Vec<_>>() }))?;
        } else {
            kept.iter().for_each(tell);
            if kept.is_empty() {
                println!("no job has results that are not on the PFS");
            }
        }
        return Ok(EXIT_OK);
    };
    let session = hooks.rescue.find(name).map_err(|why| failed("find the kept job", why))?;
    match args.discard {
        true => hooks.rescue.discard(&session).map_err(|why| failed("give the job up", why))?,
        false => hooks.rescue.go_on(&session).map_err(|why| {
            let error = failed("bring the results to the PFS", why);
            error.hint(&format!(
                "the buffer is kept. Other files of it: `forebay stage out {}:/PATH /PFS/PATH --server ADDR`; to give it up: \
                 `forebay rescue {name} --discard`",
                buffer(&session)
            ))
        })?,
    }
    if args.json {
        let outcome = if args.discard { "discarded" } else { "done" };
        print_json(
            &json!({ "job": session.token, "buffer": buffer(&session), "outcome": outcome }),
        )?;
    }
    Ok(EXIT_OK)
}

fn buffer(session: &Session) -> &str {
    session.buffer.as_ref().map_or("", |buffer| buffer.as_str())
}

fn shown(session: &Session) -> Value {
    json!({
        "job": session.token, "buffer": buffer(session), "owner_uid": session.uid,
        "created_s": session.created_s, "capacity_bytes": session.capacity_bytes,
        "missing_results": session.missing,
    })
}

fn tell(session: &Session) {
    let (job, uid) = (&session.token, session.uid);
    let capacity = format_bytes(session.capacity_bytes);
    println!("{}: job {job} of user {uid}, {capacity}", buffer(session));
    for why in &session.missing {
        println!("  {}", visible(why));
    }
    if session.missing.is_empty() {
        println!("  its results were not staged out");
    }
}
