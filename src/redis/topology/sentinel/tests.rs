//! Tests of how the answers of sentinels are read.

use super::*;
use crate::redis::settings::AddressMap;

fn text(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

fn words(words: &[(&str, &str)]) -> Reply {
    let words = words.iter();
    Reply::List(
        words
            .flat_map(|(name, value)| [text(name), text(value)])
            .collect(),
    )
}

#[test]
fn what_a_sentinel_reports_is_read_by_names() {
    let master = words(&[
        ("name", "shop"),
        // Of the primary before, while a failover is under way.
        ("ip", "10.0.0.6"),
        ("down-after-milliseconds", "2000"),
        ("config-epoch", "5"),
    ]);
    let address = Reply::List(vec![text("10.0.0.7"), text("6380")]);
    let learned = LearnedAddresses::default();
    let asked = Address::new("10.0.0.1", 26379);
    let report = read(&master, &address, &learned, &asked).expect("it is right");
    assert_eq!(report.primary.to_string(), "10.0.0.7:6380");
    assert_eq!(
        (report.epoch, report.down_after),
        (5, Some(Duration::from_secs(2)))
    );
    assert_eq!(read(&Reply::Nil, &address, &learned, &asked), None);
    assert_eq!(read(&master, &Reply::Nil, &learned, &asked), None);
    let unfinished = Reply::List(vec![text("ip"), text("x")]);
    assert_eq!(read(&unfinished, &address, &learned, &asked), None);
}

#[test]
fn other_sentinels_are_read_unless_they_are_down_or_unknown() {
    let learned = LearnedAddresses::default();
    let asked = Address::new("10.0.0.1", 26379);
    let read = |ip, port, id, flags| {
        let other = words(&[("ip", ip), ("port", port), ("runid", id), ("flags", flags)]);
        let other = sentinel(&other, &learned, &asked)?;
        Some((other.0.to_string(), other.1.as_deref().map(str::to_owned)))
    };
    assert_eq!(
        read("10.0.0.2", "26379", "a", "sentinel"),
        Some(("10.0.0.2:26379".to_owned(), Some("a".to_owned())))
    );
    assert_eq!(
        read("10.0.0.2", "26379", "", "sentinel"),
        Some(("10.0.0.2:26379".to_owned(), None))
    );
    assert_eq!(read("10.0.0.2", "26379", "a", "s_down,sentinel"), None);
    assert_eq!(read("10.0.0.2", "0", "a", "sentinel"), None);
    assert_eq!(read("", "26379", "a", "sentinel"), None);
    assert_eq!(sentinel(&Reply::Nil, &learned, &asked), None);
}

#[test]
fn the_primary_and_other_sentinels_are_mapped() {
    let entries = [("172.20.0.2:6379", "out:1"), ("172.20.0.3", "out")];
    let entries = entries.map(|(from, to)| (from.to_owned(), to.to_owned()));
    let map = AddressMap::Entries(entries.into()).read().expect("valid");
    let learned = LearnedAddresses::new(Some(map));
    let asked = Address::new("10.0.0.1", 26379);
    let master = words(&[("name", "shop"), ("config-epoch", "5")]);
    let address = Reply::List(vec![text("172.20.0.2"), text("6379")]);
    let report = read(&master, &address, &learned, &asked).expect("it is right");
    assert_eq!(report.primary.to_string(), "out:1");
    let other = words(&[("ip", "172.20.0.3"), ("port", "26380")]);
    let (other, _) = sentinel(&other, &learned, &asked).expect("it is right");
    assert_eq!(other.to_string(), "out:26380");
}
