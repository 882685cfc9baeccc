//! How the tests run commands.

use forebay_tests::procs::try_run;
use std::process::Command;

/// More than a pipe holds. What a command leaves behind may hold the pipe: it is not waited for.
#[test]
fn all_that_a_command_has_said_is_there_when_it_has_ended() {
    let mut command = Command::new("sh");
    command.args(["-c", "head -c 200000 /dev/zero; sleep 2 & printf end"]);
    let (good, said) = try_run(&mut command);
    assert!(good);
    assert_eq!(said.len(), 200_003);
    assert!(said.ends_with("end"));
}
