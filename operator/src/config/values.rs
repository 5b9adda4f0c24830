//! Values of settings, checked where they are read.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest value of an EC2 tag, in characters
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html>).
const TAG_VALUE_MAX: usize = 256;

/// A cluster's name, which every ENI of the cluster carries as a tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct ClusterName(String);

impl ClusterName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text is no cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is refused; allowed: 1 to 256 characters without spaces, control characters, '*', '?' and \
     '\\', which filters of EC2 take for patterns"
)]
pub struct NotAClusterName(String);

impl TryFrom<String> for ClusterName {
    type Error = NotAClusterName;

    fn try_from(name: String) -> Result<Self, NotAClusterName> {
        let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '?' | '\\');
        let length = name.chars().count();
        if (1..=TAG_VALUE_MAX).contains(&length) && !name.contains(bad) {
            Ok(Self(name))
        } else {
            Err(NotAClusterName(name))
        }
    }
}

/// A span of time from `MIN` to `MAX` seconds, written as `90s`, `5m` or `1h 30m`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Span<const MIN: u64, const MAX: u64>(Duration);

impl<const MIN: u64, const MAX: u64> Span<MIN, MAX> {
    /// A default, which is within the bounds.
    pub(super) const fn of(seconds: u64) -> Self {
        assert!(MIN <= seconds && seconds <= MAX);
        Self(Duration::from_secs(seconds))
    }

    /// The span.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Span<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = SignedDuration::try_from(self.0).unwrap_or(SignedDuration::MAX);
        write!(f, "{span:#}")
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Debug for Span<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Span<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Span<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let span = text.parse::<SignedDuration>().ok();
        let span = span.and_then(|span| Duration::try_from(span).ok());
        let bounds = Duration::from_secs(MIN)..=Duration::from_secs(MAX);
        span.filter(|span| bounds.contains(span))
            .map(Self)
            .ok_or_else(|| {
                let (min, max) = (Self(*bounds.start()), Self(*bounds.end()));
                D::Error::custom(format_args!(
                    "{text:?} is refused; allowed: a span of time from {min} to {max} (90s, 5m)"
                ))
            })
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Span<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("SpanFrom{MIN}To{MAX}").into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }

    fn inline_schema() -> bool {
        true
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Count<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Count<MIN, MAX> {
    /// A default, which is within the bounds.
    pub(super) const fn of(number: u32) -> Self {
        assert!(MIN <= number && number <= MAX);
        Self(number)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Count<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let within = u32::try_from(number)
            .ok()
            .filter(|it| (MIN..=MAX).contains(it));
        within.map(Self).ok_or_else(|| {
            D::Error::custom(format_args!("{number} is refused; allowed: {MIN} to {MAX}"))
        })
    }
}

impl<const MIN: u32, const MAX: u32> JsonSchema for Count<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("CountFrom{MIN}To{MAX}").into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }

    fn inline_schema() -> bool {
        true
    }
}

/// A positive number of calls, or of calls a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Calls(#[schemars(range(min = 0.01, max = 10000.0))] f64);

impl Calls {
    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(f64::deserialize(deserializer)?, 0.01, 10_000.0).map(Self)
    }
}

/// A share, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Share(#[schemars(range(min = 0.01, max = 1.0))] f64);

impl Share {
    /// A default, which is within the bounds.
    pub(super) const fn of(share: f64) -> Self {
        assert!(share >= 0.01 && share <= 1.0);
        Self(share)
    }

    /// The share.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(f64::deserialize(deserializer)?, 0.01, 1.0).map(Self)
    }
}

fn within<E: serde::de::Error>(number: f64, min: f64, max: f64) -> Result<f64, E> {
    if (min..=max).contains(&number) {
        return Ok(number);
    }
    Err(E::custom(format_args!(
        "{number} is refused; allowed: {min} to {max}"
    )))
}
