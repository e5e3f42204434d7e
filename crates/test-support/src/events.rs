//! What an operator sees: the events of the crate under test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::eventually;

/// Collects events, each as its fields and its message.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<(Level, String)>>>);

impl Events {
    /// From every thread of this process. Once in a process.
    pub fn of_all_threads() -> Self {
        let events = Self::default();
        tracing::subscriber::set_global_default(events.clone()).expect("the only one");
        events
    }

    /// From this thread, which for a test with a runtime of one thread is from all of its tasks, until the guard is
    /// dropped.
    pub fn of_this_thread() -> (Self, DefaultGuard) {
        let events = Self::default();
        let guard = tracing::subscriber::set_default(events.clone());
        (events, guard)
    }

    /// How many there are with this text.
    pub fn count(&self, level: Level, text: &str) -> usize {
        let events = self.0.lock().expect("unpoisoned");
        let is_one = |(seen, event): &&(Level, String)| *seen == level && event.contains(text);
        events.iter().filter(is_one).count()
    }

    pub fn has(&self, level: Level, text: &str) -> bool {
        self.count(level, text) > 0
    }

    pub async fn comes(&self, level: Level, text: &str) {
        let seen = self.0.lock().expect("unpoisoned").clone();
        let what = format!("{level} {text}, seen: {seen:#?}");
        eventually(&what, Duration::from_secs(5), || self.has(level, text)).await;
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "redisson_lock" && *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        self.0
            .lock()
            .expect("unpoisoned")
            .push((*event.metadata().level(), text));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
