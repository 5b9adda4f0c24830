//! The modules of a crate or folder that a source file names.

use std::collections::BTreeSet;

/// The first part of each path that begins at a module: `module` is its path from the crate's root,
/// empty for the root itself. `depth` is the number of modules that the file is below it. Comments
/// and tests beside the code are left out.
pub(super) fn imports(text: &str, module: &str, depth: usize) -> BTreeSet<String> {
    let code = from_module(code(text), module);
    let mut found = BTreeSet::new();
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("::") {
        let is_root = ends_with_word(before, "crate") || {
            let supers = before.ends_with("super").then(|| supers(before, after));
            supers == Some(depth)
        };
        let beyond = after.trim_start_matches("super::");
        if is_root {
            found.extend(heads(beyond));
        }
        // The rest of a chain of `super` is no path of its own.
        rest = if ends_with_word(before, "super") {
            beyond
        } else {
            after
        };
    }
    found.remove("");
    found
}

/// The code with `crate` for the module, as if that were the root.
fn from_module(code: String, module: &str) -> String {
    if module.is_empty() {
        return code;
    }
    let code = code.replace("crate::", "outside::");
    code.replace(&format!("outside::{module}::"), "crate::")
}

/// The text without its comments, up to the tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek().map_or("", |next| next.trim_start());
        if line == "#[cfg(test)]" && next.starts_with("mod ") {
            break;
        }
        code.push_str(line.split_once("//").map_or(line, |(code, _)| code));
        code.push('\n');
    }
    code
}

fn ends_with_word(text: &str, word: &str) -> bool {
    let before = text.strip_suffix(word);
    before.is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// The number of `super` in the path whose first one ends `before`; 0 in the midst of a path.
fn supers(before: &str, after: &str) -> usize {
    if !ends_with_word(before, "super") || before.ends_with("::super") {
        return 0;
    }
    let mut count = 1;
    let mut rest = after;
    while let Some(more) = rest.strip_prefix("super::") {
        count += 1;
        rest = more;
    }
    count
}

/// The first name of a path, or of each path of a group in braces.
fn heads(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return vec![head(path)];
    };
    let mut heads = Vec::new();
    let (mut depth, mut begin) = (0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                heads.extend(group.get(begin..at).map(head));
                begin = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    heads
}

fn head(path: &str) -> String {
    let path = path.trim_start();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    path.chars().take_while(|c| is_name(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::imports;

    fn names(text: &str, depth: usize) -> Vec<String> {
        imports(text, "", depth).into_iter().collect()
    }

    #[test]
    fn paths_from_the_root_are_found_in_every_form() {
        let text =
            "use crate::a::b;\nuse crate::{\n    c, d::{x, y},\n};\nfn f() { crate::e::g() }";
        assert_eq!(names(text, 1), ["a", "c", "d", "e"]);
        assert_eq!(names("use super::a;", 1), ["a"]);
        assert_eq!(names("use super::super::{a, b};", 2), ["a", "b"]);
        assert_eq!(names("macro_rules! m { () => { $crate::a } }", 1), ["a"]);
    }

    #[test]
    fn paths_from_a_module_are_found() {
        let found = |text: &str, depth| -> Vec<String> {
            imports(text, "a::b", depth).into_iter().collect()
        };
        let text = "use crate::c;\nuse crate::a::d;\nuse crate::a::b::{e, f::g};";
        assert_eq!(found(text, 1), ["e", "f"]);
        assert_eq!(found("use super::e;\nuse super::super::f;", 1), ["e"]);
    }

    #[test]
    fn other_paths_comments_and_tests_are_left_out() {
        let text = "use super::a;\nuse my_crate::b;\n// crate::c\n/// [`crate::d`]\n\
                    #[cfg(test)]\nmod tests {\n    use crate::e;\n}";
        assert_eq!(names(text, 2), Vec::<String>::new());
    }
}
