//! Named points at which a test can kill the plugin, like the agent's (`agent/src/fault_points.rs`).
//!
//! With the feature `fault-points`, `TOWPATH_CNI_FAULT=<point>[:<n>]` makes the process send itself
//! SIGKILL when it reaches the point for the n-th time (by default the first). Without the feature
//! none of this is compiled.

use std::fmt;

/// Kind of a request to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A request for a new object: the endpoint of ADD, or the lease of the IPAM plugin's ADD.
    Add,
    /// The claim of a lease.
    Claim,
    /// The removal by DEL.
    Del,
    /// The removal by a queued DEL.
    Queued,
    /// The removal by GC.
    Collect,
    /// A request that changes nothing: no point.
    Look,
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the connection.
    Connect,
    /// The request is out.
    Sent,
    /// The answer is in.
    Answered,
}

/// A point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// In a request to the agent.
    Call(Exchange, Stage),
    /// A delegated plugin has given addresses.
    Delegated,
    /// Before the result is printed.
    Print,
    /// The result is printed.
    Printed,
    /// Before a DEL is written to the queue's temporary file.
    QueueWrite,
    /// Before the temporary file takes its name.
    QueueRename,
    /// It has its name.
    QueueRenamed,
    /// Before a queued DEL that was carried out is removed.
    QueueRemove,
}

impl Exchange {
    const CHANGING: [Self; 5] = [
        Self::Add,
        Self::Claim,
        Self::Del,
        Self::Queued,
        Self::Collect,
    ];

    /// A point in it.
    #[must_use]
    pub fn at(self, stage: Stage) -> Point {
        Point::Call(self, stage)
    }
}

impl Stage {
    const ALL: [Self; 3] = [Self::Connect, Self::Sent, Self::Answered];
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (exchange, stage) = match self {
            Self::Call(exchange, stage) => (exchange, stage),
            Self::Delegated => return f.write_str("delegate.added"),
            Self::Print => return f.write_str("print.begin"),
            Self::Printed => return f.write_str("print.end"),
            Self::QueueWrite => return f.write_str("queue.write"),
            Self::QueueRename => return f.write_str("queue.rename"),
            Self::QueueRenamed => return f.write_str("queue.renamed"),
            Self::QueueRemove => return f.write_str("queue.remove"),
        };
        f.write_str(match exchange {
            Exchange::Add => "add",
            Exchange::Claim => "claim",
            Exchange::Del => "del",
            Exchange::Queued => "queued",
            Exchange::Collect => "gc",
            Exchange::Look => "look",
        })?;
        f.write_str(match stage {
            Stage::Connect => ".connect",
            Stage::Sent => ".sent",
            Stage::Answered => ".answered",
        })
    }
}

/// Every point.
pub fn points() -> impl Iterator<Item = Point> {
    let calls = Exchange::CHANGING
        .into_iter()
        .flat_map(|exchange| Stage::ALL.map(|stage| exchange.at(stage)));
    calls.chain([
        Point::Delegated,
        Point::Print,
        Point::Printed,
        Point::QueueWrite,
        Point::QueueRename,
        Point::QueueRenamed,
        Point::QueueRemove,
    ])
}

#[cfg(not(feature = "fault-points"))]
mod armed {
    /// Nothing is compiled in.
    #[inline(always)]
    pub fn reach(_point: super::Point) {}
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::env;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::{Point, points};

    const VARIABLE: &str = "TOWPATH_CNI_FAULT";

    static FAULT: LazyLock<Option<(String, AtomicU64)>> =
        LazyLock::new(|| env::var(VARIABLE).ok().map(|text| parse(&text)));

    /// A text that names no point would let a test of crashes pass without one.
    fn parse(text: &str) -> (String, AtomicU64) {
        let (name, count) = match text.split_once(':') {
            None => (text, Some(1)),
            Some((name, count)) => (name, count.parse().ok()),
        };
        let known = points().any(|point| point.to_string() == name);
        match count {
            Some(count @ 1..) if known => (name.to_owned(), AtomicU64::new(count)),
            _ => panic!("{VARIABLE} is {text:?}, which is not <point>[:<n>]"),
        }
    }

    /// Marks that a point is reached. Does not return when it is the one.
    pub fn reach(point: Point) {
        if let Some((name, left)) = &*FAULT
            && point.to_string() == *name
            && left.fetch_sub(1, Ordering::Relaxed) == 1
            && let Err(error) = raise(Signal::SIGKILL)
        {
            crate::log::warn(&format!("SIGKILL: {error}"));
        }
    }
}

pub use armed::reach;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = points().map(|point| point.to_string()).collect();
        assert_eq!(names.len(), points().count());
        assert!(names.contains("add.sent") && names.contains("queue.rename"));
    }
}
