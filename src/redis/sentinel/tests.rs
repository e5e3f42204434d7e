//! Tests of what is believed of the sentinels' answers.

use super::*;

fn report(epoch: u64, port: u16) -> Report {
    Report {
        epoch,
        primary: Address::new("10.0.0.1", port),
        down_after: None,
    }
}

#[test]
fn the_highest_epoch_is_believed_and_an_old_story_is_not() {
    let mut reports = Reports::new(3);
    let start = Instant::now();
    let primary = |reports: &mut Reports, nth, report: Report| {
        let primary = reports.primary(nth, report, start);
        primary.map(|address| address.port)
    };
    assert_eq!(primary(&mut reports, 0, report(1, 1)), Some(1));
    assert_eq!(primary(&mut reports, 1, report(2, 2)), Some(2));
    let behind = primary(&mut reports, 0, report(1, 1));
    assert_eq!(behind, Some(2), "it lies behind");
    let same_epoch = primary(&mut reports, 0, report(2, 3));
    assert_eq!(same_epoch, Some(2), "of one epoch there is one primary");
    reports.latest = vec![None; 3];
    primary(&mut reports, 0, report(1, 1));
    let most = primary(&mut reports, 2, report(1, 1));
    assert_eq!(most, Some(2), "the one that knows more does not answer");
    let all = primary(&mut reports, 1, report(1, 1));
    assert_eq!(all, Some(1), "all tell it: they were made anew");
}

#[test]
fn another_primary_in_no_higher_epoch_is_believed_when_all_who_answer_go_on_telling_of_it() {
    let (mut reports, start) = (Reports::new(3), Instant::now());
    let mut tells = |nth: usize, epoch, port, secs| {
        let now = start + Duration::from_secs(secs);
        let primary = reports.primary(nth, report(epoch, port), now);
        primary.map(|address| address.port)
    };
    for nth in 0..3 {
        assert_eq!(tells(nth, 5, 1, 0), Some(1));
    }
    // The same epoch, one after the other.
    assert_eq!(tells(0, 5, 2, 1), Some(1));
    assert_eq!(tells(1, 5, 2, 9), Some(1), "the third tells otherwise");
    assert_eq!(
        tells(2, 5, 2, 10),
        Some(1),
        "it may be a mistake of a moment"
    );
    assert_eq!(tells(0, 5, 2, 14), Some(1), "not for long enough");
    assert_eq!(tells(1, 5, 2, 15), Some(2));
    // Not while one of them tells of the former.
    assert_eq!(tells(0, 5, 1, 20), Some(2));
    assert_eq!(tells(1, 5, 1, 20), Some(2));
    assert_eq!(tells(0, 5, 1, 60), Some(2), "the third tells otherwise");
}

#[test]
fn who_does_not_answer_is_not_asked_for_its_opinion_but_most_have_to_answer() {
    let (mut reports, start) = (Reports::new(3), Instant::now());
    let at = |secs| start + Duration::from_secs(secs);
    let port = |primary: Option<Address>| primary.map(|address| address.port);
    for nth in 0..3 {
        reports.primary(nth, report(5, 1), at(0));
    }
    reports.latest = vec![None; 3];
    for secs in [1, 2, 30] {
        let alone = reports.primary(0, report(3, 2), at(secs));
        assert_eq!(port(alone), Some(1), "one of three");
    }
    assert_eq!(port(reports.primary(1, report(4, 2), at(31))), Some(1));
    assert_eq!(port(reports.primary(0, report(4, 2), at(35))), Some(1));
    // It begins anew with every other answer.
    assert_eq!(port(reports.primary(1, report(4, 3), at(36))), Some(1));
    assert_eq!(port(reports.primary(1, report(4, 2), at(37))), Some(1));
    assert_eq!(port(reports.primary(0, report(4, 2), at(41))), Some(1));
    assert_eq!(port(reports.primary(0, report(4, 2), at(42))), Some(2));
    let higher = reports.primary(2, report(5, 1), at(43));
    assert_eq!(port(higher), Some(1), "a higher epoch is believed at once");
}

#[test]
fn what_a_sentinel_says_is_read_by_names() {
    let text = |text: &str| Reply::Text(text.to_owned());
    let words = [
        ("name", "shop"),
        // Of the primary before, while a failover is under way.
        ("ip", "10.0.0.6"),
        ("down-after-milliseconds", "2000"),
        ("config-epoch", "5"),
    ];
    let list = words
        .iter()
        .flat_map(|(name, value)| [text(name), text(value)]);
    let master = Reply::List(list.collect());
    let address = Reply::List(vec![text("10.0.0.7"), text("6380")]);
    let asked = Address::new("10.0.0.1", 26379);
    let report = read(&master, &address, &asked).expect("it is right");
    assert_eq!(report.primary.to_string(), "10.0.0.7:6380");
    assert_eq!(
        (report.epoch, report.down_after),
        (5, Some(Duration::from_secs(2)))
    );
    assert_eq!(read(&Reply::Nil, &address, &asked), None);
    assert_eq!(read(&master, &Reply::Nil, &asked), None);
    assert_eq!(
        read(&Reply::List(vec![text("ip"), text("x")]), &address, &asked),
        None
    );
}
