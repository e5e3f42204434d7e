//! The verdict of several servers' answers. Plain data: no lock, no clock.

use tokio::time::Instant;

/// The answer of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// Nothing yet.
    Open,
    /// It is held there until then at least: the time that passed and the drift of clocks are taken off.
    Taken(Instant),
    Busy,
    /// It has not answered in time, or failed.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Undecided,
    /// Held at a quorum of the servers.
    Taken,
    /// A quorum has answered, and too few of it have the lock.
    Busy,
    /// Too few have answered.
    Silent,
}

/// More than half of the servers: two of such groups have one in common.
pub(super) fn quorum(servers: usize) -> usize {
    servers / 2 + 1
}

/// Until when a quorum holds: the quorum-th longest of these. `None`: they are fewer.
pub(super) fn valid_until<I: Ord>(ends: impl IntoIterator<Item = I>, quorum: usize) -> Option<I> {
    let mut ends: Vec<I> = ends.into_iter().collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.into_iter().nth(quorum - 1)
}

pub(super) fn verdict(votes: &[Vote], now: Instant) -> Verdict {
    let quorum = quorum(votes.len());
    let count =
        |wanted: fn(Vote, Instant) -> bool| votes.iter().filter(|vote| wanted(**vote, now)).count();
    // A lease that is over before the others have answered counts for nothing.
    let taken = count(|vote, now| matches!(vote, Vote::Taken(until) if until > now));
    let open = count(|vote, _| vote == Vote::Open);
    let answered = count(|vote, _| matches!(vote, Vote::Taken(_) | Vote::Busy));
    if taken >= quorum {
        Verdict::Taken
    } else if taken + open >= quorum {
        Verdict::Undecided
    } else if answered >= quorum {
        Verdict::Busy
    } else if answered + open >= quorum {
        // What has not answered yet says nothing, and may never.
        Verdict::Undecided
    } else {
        Verdict::Silent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use test_support::test;

    fn now() -> Instant {
        Instant::now() + Duration::from_secs(100)
    }

    #[test]
    fn a_quorum_is_more_than_half() {
        let quorums: Vec<_> = (3..8).map(quorum).collect();
        assert_eq!(quorums, [2, 3, 3, 4, 4]);
    }

    #[test]
    fn the_quorum_th_longest_says_until_when() {
        assert_eq!(valid_until([5, 9, 7], 2), Some(7));
        assert_eq!(valid_until([1, 9, 2, 8, 3], 3), Some(3));
        assert_eq!(valid_until([9], 2), None);
    }

    /// Every combination of answers of three and of five servers, against what the words say.
    #[test]
    fn it_is_taken_with_a_quorum_and_never_without() {
        let (now, later) = (now(), now() + Duration::from_secs(1));
        let answers = [
            Vote::Open,
            Vote::Taken(later),
            Vote::Taken(now),
            Vote::Busy,
            Vote::Silent,
        ];
        for servers in [3, 5] {
            for nth in 0..answers.len().pow(servers) {
                let vote = |server| answers[nth / answers.len().pow(server) % answers.len()];
                let votes: Vec<Vote> = (0..servers).map(vote).collect();
                let count = |wanted: Vote| votes.iter().filter(|vote| **vote == wanted).count();
                let most = votes.len() / 2 + 1;
                let (taken, open) = (count(Vote::Taken(later)), count(Vote::Open));
                let found = verdict(&votes, now);
                assert_eq!(found == Verdict::Taken, taken >= most, "{votes:?}");
                let answered = votes.len() - open - count(Vote::Silent);
                let is_busy = taken + open < most && answered >= most;
                assert_eq!(found == Verdict::Busy, is_busy, "{votes:?}");
                let is_silent = answered + open < most;
                assert_eq!(found == Verdict::Silent, is_silent, "{votes:?}");
                // When all have answered there is an outcome.
                assert!(open > 0 || found != Verdict::Undecided, "{votes:?}");
            }
        }
    }
}
