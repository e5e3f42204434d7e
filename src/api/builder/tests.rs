//! Tests of the settings.

use super::*;

type Set = fn(LockClientBuilder) -> LockClientBuilder;

fn checked(set: Set) -> Result<(), Error> {
    set(LockClientBuilder::new()).check()
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn settings_are_good_up_to_their_bounds() {
    let good: [Set; 12] = [
        |builder| builder,
        // What was not set goes along.
        |builder| builder.watchdog_timeout(5_000 * MS),
        |builder| builder.watchdog_timeout(300 * MS),
        |builder| builder.watchdog_timeout(300 * MS).command_timeout(99 * MS),
        |builder| builder.watchdog_timeout(DAY),
        |builder| builder.command_timeout(Duration::from_nanos(1)),
        |builder| builder.command_timeout(Duration::from_nanos(9_999_999_999)),
        |builder| builder.connections(1),
        |builder| builder.connections(16),
        |builder| builder.max_hold(10 * MS),
        |builder| builder.fair_wait(1_000 * MS),
        |builder| builder.fair_wait(DAY),
    ];
    for (nth, set) in good.into_iter().enumerate() {
        checked(set).unwrap_or_else(|error| panic!("{nth}: {error}"));
    }
}

#[test]
fn settings_past_their_bounds_are_refused_by_name() {
    let bad: [(&str, Set); 10] = [
        ("watchdog_timeout", |builder| {
            builder.watchdog_timeout(299 * MS).command_timeout(MS)
        }),
        ("watchdog_timeout", |builder| {
            builder.watchdog_timeout(DAY + MS)
        }),
        ("command_timeout", |builder| {
            builder.command_timeout(Duration::ZERO)
        }),
        ("command_timeout", |builder| {
            builder.command_timeout(Duration::from_secs(10))
        }),
        ("connections", |builder| builder.connections(0)),
        ("connections", |builder| builder.connections(17)),
        ("max_hold", |builder| builder.max_hold(9 * MS)),
        ("max_hold", |builder| builder.max_hold(DAY * 3_651)),
        ("fair_wait", |builder| builder.fair_wait(999 * MS)),
        ("fair_wait", |builder| builder.fair_wait(DAY + MS)),
    ];
    for (name, set) in bad {
        match checked(set) {
            Err(Error::InvalidDuration { what, .. } | Error::InvalidConfig { what, .. }) => {
                assert_eq!(what, name);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}
