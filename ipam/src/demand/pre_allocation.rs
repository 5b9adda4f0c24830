//! The number of addresses of each pool to keep in store.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::DEFAULT_POOL;

/// The number of addresses that are kept in store, by pool; the same for each family. Of a pool
/// that is not in it none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreAllocation {
    by_pool: BTreeMap<String, u32>,
}

impl PreAllocation {
    /// None of any pool.
    #[must_use]
    pub fn none() -> Self {
        let by_pool = BTreeMap::new();
        Self { by_pool }
    }

    /// The number of addresses of a pool that are kept in store.
    #[must_use]
    pub fn of(&self, pool: &str) -> u32 {
        self.by_pool.get(pool).copied().unwrap_or(0)
    }

    /// Every pool that is named.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.by_pool.iter().map(|(pool, n)| (pool.as_str(), *n))
    }
}

impl Default for PreAllocation {
    /// Eight of the default pool.
    fn default() -> Self {
        Self {
            by_pool: [(DEFAULT_POOL.to_owned(), 8)].into(),
        }
    }
}

/// A text does not say how many addresses to keep in store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePreAllocationError {
    /// A part is not of the form.
    #[error("{0:?}: pool=number is allowed, with commas between (default=8,mars=16)")]
    Form(String),
    /// The number is none.
    #[error("pool {pool}: {value:?} is no number of addresses; 0 or more is allowed")]
    Number {
        /// The pool.
        pool: String,
        /// The value that stands there.
        value: String,
    },
    /// A pool stands twice.
    #[error("pool {0} is a duplicate; each is allowed once")]
    Twice(String),
}

impl FromStr for PreAllocation {
    type Err = ParsePreAllocationError;

    /// Reads `default=8,mars=16`. The empty text is none for any pool.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut by_pool = BTreeMap::new();
        for part in text.split(',').map(str::trim) {
            if part.is_empty() && text.trim().is_empty() {
                break;
            }
            let form = || ParsePreAllocationError::Form(part.to_owned());
            let (pool, value) = part.split_once('=').ok_or_else(form)?;
            let (pool, value) = (pool.trim(), value.trim());
            if pool.is_empty() {
                return Err(form());
            }
            let Ok(count) = value.parse() else {
                return Err(ParsePreAllocationError::Number {
                    pool: pool.to_owned(),
                    value: value.to_owned(),
                });
            };
            if by_pool.insert(pool.to_owned(), count).is_some() {
                return Err(ParsePreAllocationError::Twice(pool.to_owned()));
            }
        }
        Ok(Self { by_pool })
    }
}

impl fmt::Display for PreAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (pool, count)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{pool}={count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in ["default=8", "default=8,mars=16", "", "mars=0"] {
            assert_eq!(text.parse::<PreAllocation>().unwrap().to_string(), text);
        }
        let spaced: PreAllocation = " default = 8 , mars=16".parse().unwrap();
        assert_eq!(spaced.to_string(), "default=8,mars=16");
        assert_eq!(spaced.of("mars"), 16);
        assert_eq!(spaced.of("jupiter"), 0);
        assert_eq!(PreAllocation::default().to_string(), "default=8");
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<PreAllocation>().unwrap_err().to_string();
        assert_eq!(
            error("default=8,mars=x"),
            "pool mars: \"x\" is no number of addresses; 0 or more is allowed"
        );
        assert_eq!(
            error("default"),
            "\"default\": pool=number is allowed, with commas between (default=8,mars=16)"
        );
        assert!(error("a=1,").starts_with("\"\": "));
        assert!(error("=1").starts_with("\"=1\": "));
        assert_eq!(
            error("a=1,a=1"),
            "pool a is a duplicate; each is allowed once"
        );
        assert!(error("a=-1").starts_with("pool a: \"-1\""));
    }
}
