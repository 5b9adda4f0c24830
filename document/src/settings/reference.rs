//! A page about all settings.

use super::text::{WIDTH, plain, wrapped};
use super::{Key, Settings};

/// The chapter of settings that are in no section.
const TOP: &str = "Top level";

impl Settings {
    /// The chapters of a Markdown page in `docs/reference`: a table for each section, and the last
    /// one for settings in none. A path of a page (`docs/guide/nat.md`) in a help becomes a link.
    #[must_use]
    pub fn reference(&self) -> String {
        let (mut page, mut top) = (String::new(), chapter(TOP, ""));
        for key in &self.keys {
            match (key.depth(), key.is_section) {
                (0, true) => page += &chapter(&key.name(), &linked(&key.help)),
                (0, false) => top += &self.line(key),
                (_, true) => {}
                (_, false) => page += &self.line(key),
            }
        }
        page + &top
    }

    /// The table's line of a setting.
    fn line(&self, key: &Key) -> String {
        let default = self.default(key).map(plain).unwrap_or_default();
        let default = match default.as_str() {
            "" => "\"\"",
            default => default,
        };
        format!(
            "| `{}` | `{default}` | {} |\n",
            key.name(),
            linked(&key.help)
        )
    }
}

/// The head of a chapter and of its table.
fn chapter(title: &str, help: &str) -> String {
    let mut text = format!("\n## {title}\n\n");
    for line in wrapped(help, WIDTH) {
        text += &line;
        text.push('\n');
    }
    if !help.is_empty() {
        text.push('\n');
    }
    text + "| setting | default | meaning |\n|---|---|---|\n"
}

/// A help with links to the pages that it names.
fn linked(help: &str) -> String {
    let words: Vec<String> = help.split(' ').map(link).collect();
    words.join(" ")
}

/// A word, or a link where it is the path of a page.
fn link(word: &str) -> String {
    let Some((before, path)) = word.split_once("docs/") else {
        return word.to_owned();
    };
    let Some((page, after)) = path.split_once(".md") else {
        return word.to_owned();
    };
    let is_anchor = |c: char| c == '#' || c == '-' || c.is_ascii_alphanumeric();
    let end = after.find(|c| !is_anchor(c)).unwrap_or(after.len());
    let (anchor, after) = after.split_at(end);
    let title = page.rsplit('/').next().unwrap_or(page);
    format!("{before}[{title}](../{page}.md{anchor}){after}")
}
