//! What is recorded is enough to play it again.

use crate::input::{CallLeaves, HoldDropped, HoldUnlocked, Input, LifeChanges, TimePasses};
use crate::tests::{A, B, Fixture, GONE, RULES};
use crate::{Discipline, Effects, Life, LockCore, Order, Time};

/// Whatever can be told to a lock says all that decides what follows from it.
#[test]
fn a_record_that_is_played_again_leads_to_the_same_state() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let nested = fixture.lock(A);
    let waits = fixture.call(B, Order::Queued);
    fixture.admit(waits);
    fixture.at(11);
    fixture.timer_fires(A);
    fixture.step(HoldDropped {
        owner: A,
        hold: nested,
    });
    let (_, op) = fixture.out.sends[0];
    fixture.job_sends(A, op);
    let unlock = fixture.step(HoldUnlocked {
        owner: A,
        hold: outer,
    });
    assert_eq!(unlock, Ok(true));
    fixture.answered(A, 1, GONE);
    fixture.step(CallLeaves { call: waits });
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    let recorded: Vec<_> = fixture.core.inputs().cloned().collect();
    assert!(recorded.len() > 20, "{}", recorded.len());
    let mut again = LockCore::new(Discipline::Plain, RULES, Life::Open);
    for (at, input) in recorded {
        again.tell(at, input, &mut Effects::default());
    }
    assert_eq!(again, fixture.core);
}

#[test]
fn the_latest_are_kept_and_a_copy_has_none() {
    let mut fixture = Fixture::new();
    for _ in 0..70 {
        fixture.step(TimePasses {});
    }
    fixture.lock(A);
    assert_eq!(fixture.core.inputs().count(), 64);
    let (_, last) = fixture.core.inputs().last().expect("there are some");
    assert!(matches!(last, Input::CallLeaves(_)), "{last:?}");
    assert_eq!(fixture.core.clone().inputs().count(), 0);
    let text = fixture.core.inputs_text();
    assert_eq!(text.lines().count(), 64);
    assert!(
        text.ends_with("0ns CallLeaves(CallLeaves { call: WaiterId(1) })\n"),
        "{text}"
    );
    assert_eq!(fixture.now, Time::START);
}
