//! Rules on the project's Markdown: links lead somewhere, lines are wrapped, words are plain.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::text;

/// Columns that a line may have. Tables are exempt: a row cannot be wrapped.
const WIDEST_LINE: usize = 100;

/// Pages that `cargo xtask` writes. They keep the form that their programs give them.
const GENERATED: &[&str] = &["docs/path-cost.md", "docs/verifier-cost.md"];

/// Words in a sense that English does not have, and the words to use. Quoted words are exempt.
const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("as ever", "as before"),
    ("besides", "also"),
    ("meanwhile", "at the same time"),
    ("nobody", "the missing actor"),
    ("of use", "useful"),
    ("somebody", "the actor, such as: another program"),
    ("stranger", "foreign"),
    ("whoever", "the actor"),
];

/// Fails on a page that breaks a rule.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let mut faults = Vec::new();
    for file in text::files(root, "md")? {
        let page = Page::read(root, &file)?;
        faults.extend(page.links(root)?);
        if !GENERATED.iter().any(|name| page.name == Path::new(name)) {
            faults.extend(page.wide_lines());
            faults.extend(page.words());
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A page of the project.
struct Page {
    /// The path below the project's root.
    name: PathBuf,
    text: String,
}

impl Page {
    fn read(root: &Path, file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(file).to_owned();
        Ok(Self { name, text })
    }

    fn fault(&self, number: usize, what: &str) -> String {
        format!("{}:{number}: {what}", self.name.display())
    }

    /// The lines of prose with their numbers: everything outside of code blocks.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut code = false;
        (1..).zip(self.text.lines()).filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !code && !fence
        })
    }

    fn wide_lines(&self) -> Vec<String> {
        let lines = (1..).zip(self.text.lines());
        let wide =
            lines.filter(|(_, line)| !line.starts_with('|') && line.chars().count() > WIDEST_LINE);
        wide.map(|(number, line)| {
            let width = line.chars().count();
            self.fault(
                number,
                &format!("{width} columns: wrap it at {WIDEST_LINE}"),
            )
        })
        .collect()
    }

    /// Words of [`WORDS`] in prose.
    fn words(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (number, line) in self.prose() {
            let prose = without_quotes(line).to_lowercase();
            let is_letter = |letter: char| letter.is_alphanumeric();
            let words: Vec<&str> = prose.split(|letter| !is_letter(letter)).collect();
            let prose = format!(" {} ", words.join(" "));
            for (word, better) in WORDS {
                if prose.contains(&format!(" {word} ")) {
                    faults.push(self.fault(number, &format!("{word}: write {better}")));
                }
            }
        }
        faults
    }

    /// Links to files and headings that do not exist.
    fn links(&self, root: &Path) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        for (number, line) in self.prose() {
            for link in targets(line) {
                if let Some(reason) = self.dangles(root, link)? {
                    faults.push(self.fault(number, &format!("link {link}: {reason}")));
                }
            }
        }
        Ok(faults)
    }

    /// The reason why a link leads nowhere.
    fn dangles(&self, root: &Path, link: &str) -> Result<Option<String>> {
        if link.contains("://") || link.starts_with("mailto:") {
            return Ok(None);
        }
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        let here = root.join(&self.name);
        let target = match here.parent() {
            Some(folder) if !path.is_empty() => folder.join(path),
            _ => here,
        };
        if !target.exists() {
            return Ok(Some("no such file".to_owned()));
        }
        if heading.is_empty() {
            return Ok(None);
        }
        let known = Self::read(root, &target)?.headings();
        Ok((!known.contains(heading)).then(|| "no such heading".to_owned()))
    }

    /// The anchors of the page's headings, by GitHub's rule.
    fn headings(&self) -> BTreeSet<String> {
        let lines = self.prose().filter(|(_, line)| line.starts_with('#'));
        lines
            .map(|(_, line)| anchor(line.trim_start_matches('#').trim()))
            .collect()
    }
}

/// The anchor of a heading: lower case, hyphens for spaces, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let lower = heading.to_lowercase();
    lower
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// A line without code and without quoted words.
fn without_quotes(line: &str) -> String {
    let outside = |text: &str, mark| text.split(mark).step_by(2).collect::<Vec<_>>().join(" ");
    outside(&outside(line, '`'), '"')
}

/// The targets of a line's inline links.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let after = line.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str, text: &str) -> Page {
        Page {
            name: name.into(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn our_own_pages_pass() {
        check().unwrap();
    }

    #[test]
    fn links_to_missing_files_and_headings_are_faults() {
        let root = datapath_build::workspace_root();
        let links = |text: &str| page("docs/a.md", text).links(root).unwrap();
        assert!(links("[a](../README.md) [b](https://example.com/x)").is_empty());
        assert!(links("[a](../README.md#licence)").is_empty());
        assert!(links("```\n[a](none.md)\n```").is_empty());
        assert_eq!(
            links("x\n[a](README.md)"),
            ["docs/a.md:2: link README.md: no such file"]
        );
        assert_eq!(
            links("[a](../README.md#license)"),
            ["docs/a.md:1: link ../README.md#license: no such heading"]
        );
    }

    #[test]
    fn words_in_a_wrong_sense_are_faults_unless_they_are_quoted() {
        let words = |text: &str| page("a.md", text).words();
        assert_eq!(words("x\nStarts Anew."), ["a.md:2: anew: write again"]);
        assert_eq!(words("It is as ever, of use.").len(), 2);
        assert!(words("Renewed; \"anew\"; `whoever`.").is_empty());
        assert!(words("```\nanew\n```").is_empty());
    }

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(anchor("The Node's condition"), "the-nodes-condition");
        assert_eq!(anchor("`external`: which ENI?"), "external-which-eni");
    }

    #[test]
    fn wide_lines_are_faults_unless_they_are_of_a_table() {
        let wide = "ä".repeat(WIDEST_LINE + 1);
        assert_eq!(page("a.md", &wide).wide_lines().len(), 1);
        assert!(page("a.md", &format!("| {wide} |")).wide_lines().is_empty());
        assert!(page("a.md", &wide[2..]).wide_lines().is_empty());
    }
}
