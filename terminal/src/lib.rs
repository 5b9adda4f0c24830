//! Output of command lines: tables for people, JSON for programs.
//!
//! Tables have one line a row and no borders. Control characters of foreign names never reach the
//! terminal.

mod output;
mod table;

pub use self::output::{Format, Output, text, value};
pub use self::table::{Paint, Table, Tone, one_line};
