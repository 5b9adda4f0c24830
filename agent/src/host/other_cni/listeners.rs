//! Sockets at which other CNIs listen, as /proc lists them.

use std::collections::BTreeSet;

/// State of a TCP socket that listens (`TCP_LISTEN` in `include/net/tcp_states.h`).
const LISTEN: &str = "0A";
/// Flag of a Unix socket that listens (`__SO_ACCEPTCON` in include/uapi/linux/net.h).
const ACCEPTS: u32 = 1 << 16;

/// TCP ports with a listener.
pub(super) fn listening(table: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (_, port) = words.next()?.rsplit_once(':')?;
        let state = words.nth(1)?;
        (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().filter_map(port).collect()
}

/// Finds the listener whose path ends so. One that is gone leaves its file and no line.
pub(super) fn listener<'a>(table: &'a str, end: &str) -> Option<&'a str> {
    let path = |line: &'a str| {
        let mut words = line.split_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let path = words.nth(3)?;
        (flags & ACCEPTS != 0 && path.ends_with(end)).then_some(path)
    };
    table.lines().find_map(path)
}
