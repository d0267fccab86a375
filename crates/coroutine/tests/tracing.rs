//! Feature `tracing`: a span for each turn, with the coroutine's id, name and level.
#![cfg(all(feature = "std", feature = "tracing", not(heddle_loom), not(miri)))]

mod support;

use heddle_coroutine::{Builder, LocalExecutor, yield_now};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps a line for each span that was made.
struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "id" {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        let mut lines = self.0.lock().unwrap();
        lines.push(fields.0);
        Id::from_u64(lines.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn every_turn_has_a_span() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Lines(lines.clone()), || {
        let executor = LocalExecutor::new();
        executor.try_spawn(Builder::new().priority(9).name("second"), yield_now()).unwrap().detach();
        executor.try_spawn(Builder::new().priority(3).name("first"), async {}).unwrap().detach();
        executor.run_until_idle();
    });
    let turn = |name: &str, level: u8| format!("turn name=\"{name}\" level={level}");
    assert_eq!(*lines.lock().unwrap(), [turn("first", 3), turn("second", 9), turn("second", 9)]);
}
