//! A commented configuration file.

use super::text::{WIDTH, wrapped, yaml};
use super::{Key, Settings};

impl Settings {
    /// A configuration file with every setting at its default, each with its help. `head` is its
    /// first comment.
    #[must_use]
    pub fn example(&self, head: &str) -> String {
        let mut file = comment(head, "");
        let mut depth = usize::MAX;
        for key in &self.keys {
            if key.is_section || key.depth() < depth {
                file.push('\n');
            }
            depth = key.depth();
            file += &self.entry(key);
        }
        file
    }

    /// The lines of a key: its help, its name, and the default of a setting.
    fn entry(&self, key: &Key) -> String {
        let indent = "  ".repeat(key.depth());
        let help = comment(&key.help, &indent);
        let name = key.path.last().map_or("", String::as_str);
        let value = self.default(key).filter(|_| !key.is_section);
        let value = value.map(|value| format!(" {}", yaml(value)));
        format!("{help}{indent}{name}:{}\n", value.unwrap_or_default())
    }
}

fn comment(text: &str, indent: &str) -> String {
    let width = WIDTH.saturating_sub(indent.len() + "# ".len());
    let lines = text.lines().flat_map(|line| wrapped(line, width));
    let lines = lines.map(|line| format!("{indent}# {line}\n"));
    lines.collect()
}
