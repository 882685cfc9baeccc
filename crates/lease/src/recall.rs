//! The way from a server to one client: what it must stop to believe or is to publish, and locks it was granted.
//!
//! Requests to tell gather in one message at a time; each has a serial, and who must know that it
//! was done waits for that serial. The client's connection for recalls is served by a thread of
//! its own ([`Channel::next`], [`Channel::done`]); without one, nothing is leased to the session.

use forebay_proto::Ino;
use forebay_proto::net::session::{LogNumber, LogTurn, MAX_RECALL_ITEMS, Recall, Ticket};
use std::time::Instant;

use super::leases::Subject;
use super::sync::{Condvar, Mutex};

/// Most things of a kind in one part: names of 255 bytes then fit a frame's body.
const MAX_PART_ITEMS: usize = MAX_RECALL_ITEMS / 8;

/// What is to be told to the client, and what it has done of it.
#[derive(Default)]
struct ChannelState {
    /// Somebody serves the channel.
    connected: bool,
    /// Counts who did: a client that connects anew takes the channel over.
    turn: u64,
    over: bool,
    /// The next message, with serial `sent + 1`.
    waiting: Recall,
    /// Serial of the last message that was given to the connection.
    sent: u64,
    /// What the client is being told, and on which connection.
    under_way: Option<(u64, Recall)>,
    /// Everything up to here is done.
    done: u64,
}

/// What is to be told to one session.
#[derive(Default)]
pub struct Channel {
    state: Mutex<ChannelState>,
    changed: Condvar,
}

impl Channel {
    /// A connection serves it from now on, under the number returned; an earlier one ends.
    pub fn connect(&self) -> u64 {
        let mut state = self.state.lock();
        state.connected = true;
        state.turn += 1;
        let turn = state.turn;
        // What the connection before is telling may never be heard: the client is told again.
        state.tell_again();
        drop(state);
        self.changed.notify_all();
        turn
    }

    /// The connection is gone. What waits is told on the next one.
    pub fn disconnect(&self, turn: u64) {
        let mut state = self.state.lock();
        if state.turn == turn {
            state.connected = false;
        }
    }

    /// True if recalls reach the client now.
    pub fn is_connected(&self) -> bool {
        self.state.lock().connected
    }

    /// True if no connection has served it yet.
    pub fn is_new(&self) -> bool {
        self.state.lock().turn == 0
    }

    /// The session is over: nobody waits any more.
    pub fn end(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    fn push(&self, add: impl FnOnce(&mut Recall)) -> u64 {
        let mut state = self.state.lock();
        add(&mut state.waiting);
        let serial = state.sent + 1;
        drop(state);
        self.changed.notify_all();
        serial
    }

    /// These leases are lost; the serial to wait for.
    pub fn recall(&self, subjects: &[Subject]) -> u64 {
        self.push(|waiting| {
            for subject in subjects {
                let (list, ino): (&mut Vec<Ino>, Ino) = match subject {
                    Subject::Names(ino) => (&mut waiting.names, *ino),
                    Subject::Attrs(ino) => (&mut waiting.attrs, *ino),
                };
                if list.last() != Some(&ino) {
                    list.push(ino);
                }
            }
        })
    }

    /// A name was removed or replaced by another session.
    pub fn gone(&self, dir: Ino, name: &[u8]) {
        self.push(|waiting| waiting.gone.push((dir, name.to_vec())));
    }

    /// Directories that had these names were moved to another directory; the serial to wait for.
    pub fn moved(&self, names: &[(Ino, &[u8])]) -> u64 {
        self.push(|waiting| {
            waiting.moved.extend(names.iter().map(|(dir, name)| (*dir, name.to_vec())));
        })
    }

    /// Of these logs of the client all is to be published.
    pub fn publish(&self, logs: &[(Ino, LogNumber, LogTurn)]) {
        self.push(|waiting| {
            for log in logs {
                if !waiting.publish.contains(log) {
                    waiting.publish.push(*log);
                }
            }
        });
    }

    /// A lock request has ended.
    pub fn lock_ended(&self, ticket: Ticket, result: Result<(), i32>) {
        self.push(|waiting| match result {
            Ok(()) => waiting.granted.push(ticket),
            Err(errno) => waiting.refused.push((ticket, errno)),
        });
    }

    /// The serial to wait for so that nothing is believed any more that was recalled before.
    pub fn last_recall(&self) -> u64 {
        let state = self.state.lock();
        let recalls = |message: &Recall| !message.names.is_empty() || !message.attrs.is_empty();
        match &state.under_way {
            _ if recalls(&state.waiting) => state.sent + 1,
            Some((_, message)) if recalls(message) => state.sent,
            _ => state.done,
        }
    }

    /// Waits until the client has done what has this serial. False if time is up first; true also
    /// when the session is over.
    pub fn wait(&self, serial: u64, until: Instant) -> bool {
        let mut state = self.state.lock();
        while state.done < serial && !state.over {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return state.done >= serial || state.over;
            }
        }
        true
    }

    /// For the connection's thread: the next message, with its serial; `None` at the end. It is
    /// to be followed by [`Channel::done`] or [`Channel::undelivered`].
    pub fn next(&self, turn: u64) -> Option<(u64, Recall)> {
        let mut state = self.state.lock();
        loop {
            if state.over || state.turn != turn {
                return None;
            }
            if !is_empty(&state.waiting) {
                state.sent += 1;
                let message = std::mem::take(&mut state.waiting);
                state.under_way = Some((turn, message.clone()));
                return Some((state.sent, message));
            }
            self.changed.wait(&mut state);
        }
    }

    /// The client has done the message. On a connection that another has taken over this says
    /// nothing: the other one tells it again.
    pub fn done(&self, turn: u64, serial: u64) {
        let mut state = self.state.lock();
        if state.under_way.as_ref().is_some_and(|(by, _)| *by == turn) {
            state.under_way = None;
            state.done = serial;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The message of this connection could not be delivered: it is told on the next one.
    pub fn undelivered(&self, turn: u64) {
        let mut state = self.state.lock();
        if state.under_way.as_ref().is_some_and(|(by, _)| *by == turn) {
            state.tell_again();
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl ChannelState {
    /// What is under way waits again, before what came since. Its serial is reached with that of
    /// the message it becomes part of.
    fn tell_again(&mut self) {
        let Some((_, mut message)) = self.under_way.take() else { return };
        let since = std::mem::take(&mut self.waiting);
        message.names.extend(since.names);
        message.attrs.extend(since.attrs);
        message.gone.extend(since.gone);
        message.moved.extend(since.moved);
        message.publish.extend(since.publish);
        message.granted.extend(since.granted);
        message.refused.extend(since.refused);
        self.waiting = message;
    }
}

fn is_empty(recall: &Recall) -> bool {
    recall.names.is_empty()
        && recall.attrs.is_empty()
        && recall.gone.is_empty()
        && recall.moved.is_empty()
        && recall.publish.is_empty()
        && recall.granted.is_empty()
        && recall.refused.is_empty()
}

/// A message in parts that are not longer than [`MAX_RECALL_ITEMS`].
pub fn in_parts(mut message: Recall) -> Vec<Recall> {
    let mut parts = Vec::new();
    loop {
        let part = Recall {
            names: take_front(&mut message.names),
            attrs: take_front(&mut message.attrs),
            gone: take_front(&mut message.gone),
            moved: take_front(&mut message.moved),
            publish: take_front(&mut message.publish),
            granted: take_front(&mut message.granted),
            refused: take_front(&mut message.refused),
        };
        parts.push(part);
        if is_empty(&message) {
            return parts;
        }
    }
}

fn take_front<T>(list: &mut Vec<T>) -> Vec<T> {
    let rest = list.split_off(list.len().min(MAX_PART_ITEMS));
    std::mem::replace(list, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    #[test]
    fn who_waits_knows_that_the_client_has_done_it() {
        let channel = Arc::new(Channel::default());
        let turn = channel.connect();
        let first = channel.recall(&[Subject::Names(Ino(1))]);
        let again = channel.recall(&[Subject::Attrs(Ino(2))]);
        assert_eq!(first, again, "they gather in one message");
        assert!(!channel.wait(first, soon()), "nobody has told the client");
        let (serial, message) = channel.next(turn).unwrap();
        assert_eq!((message.names.len(), message.attrs.len()), (1, 1));
        let later = channel.recall(&[Subject::Attrs(Ino(3))]);
        assert!(!channel.wait(later, soon()));
        channel.done(turn, serial);
        assert!(channel.wait(first, soon()));
        let (serial, message) = channel.next(turn).unwrap();
        assert_eq!(message.attrs, [Ino(3)]);
        channel.done(turn, serial);
        assert!(channel.wait(later, soon()));
    }

    #[test]
    fn what_came_while_a_message_was_under_way_is_not_taken_for_done() {
        let channel = Channel::default();
        let turn = channel.connect();
        channel.recall(&[Subject::Names(Ino(1))]);
        let (serial, _) = channel.next(turn).unwrap();
        let later = channel.recall(&[Subject::Names(Ino(2))]);
        channel.done(turn, serial);
        assert!(!channel.wait(later, soon()), "it was told of the first only");
    }

    #[test]
    fn a_broken_connection_loses_nothing() {
        let channel = Channel::default();
        let turn = channel.connect();
        let serial = channel.recall(&[Subject::Names(Ino(1))]);
        channel.next(turn).unwrap();
        channel.recall(&[Subject::Names(Ino(2))]);
        channel.undelivered(turn);
        let (again, message) = channel.next(turn).unwrap();
        assert_eq!(message.names, [Ino(1), Ino(2)]);
        channel.done(turn, again);
        assert!(channel.wait(serial, soon()));
    }

    #[test]
    fn a_client_that_connects_anew_takes_over() {
        let channel = Channel::default();
        assert!(channel.is_new() && !channel.is_connected());
        let first = channel.connect();
        let second = channel.connect();
        channel.recall(&[Subject::Names(Ino(1))]);
        assert!(channel.next(first).is_none());
        channel.disconnect(first);
        assert!(channel.is_connected() && !channel.is_new());
        assert!(channel.next(second).is_some());
    }

    #[test]
    fn what_a_broken_connection_was_telling_is_told_by_the_one_that_took_over() {
        let channel = Channel::default();
        let broken = channel.connect();
        let first = channel.recall(&[Subject::Names(Ino(1))]);
        let (early, _) = channel.next(broken).unwrap();
        let turn = channel.connect();
        let second = channel.recall(&[Subject::Names(Ino(2))]);
        channel.done(broken, early);
        assert!(!channel.wait(first, soon()), "its client may not have heard it");
        let (serial, message) = channel.next(turn).unwrap();
        assert_eq!(message.names, [Ino(1), Ino(2)]);
        channel.undelivered(broken);
        channel.done(turn, serial);
        assert!(channel.wait(first, soon()) && channel.wait(second, soon()));
    }

    #[test]
    fn the_end_of_the_session_wakes_everybody() {
        let channel = Channel::default();
        let turn = channel.connect();
        let serial = channel.recall(&[Subject::Names(Ino(1))]);
        channel.end();
        assert!(channel.wait(serial, soon()));
        assert!(channel.next(turn).is_none());
    }

    #[test]
    fn long_messages_go_in_parts() {
        let names = (0..10_000).map(Ino).collect();
        let parts = in_parts(Recall { names, granted: vec![Ticket(1)], ..Recall::default() });
        assert_eq!(parts.iter().map(|p| p.names.len()).sum::<usize>(), 10_000);
        assert!(parts.iter().all(|p| p.names.len() <= MAX_RECALL_ITEMS));
        assert_eq!(parts[0].granted, [Ticket(1)]);
    }
}
