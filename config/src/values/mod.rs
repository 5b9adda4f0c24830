//! Values of the configuration, checked where they are read.

pub(super) mod device_name;
pub(super) mod metadata_endpoint;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use datapath_common::abi::DEFAULT_CACHE;
use datapath_common::mark::MarkLayout;
use loader::constants::{MTU_MAX, MTU_MIN};
use schemars::JsonSchema;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn refused<E: Error>(value: impl fmt::Debug, allowed: impl fmt::Display) -> E {
    E::custom(format_args!("{value:?} is refused; allowed: {allowed}"))
}

/// Reads a whole number within bounds, which have a unit.
pub(super) fn within<'de, D, T>(
    deserializer: D,
    bounds: RangeInclusive<T>,
    unit: &str,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64> + PartialOrd + fmt::Display,
{
    let allowed = format!("{} to {}{unit}", bounds.start(), bounds.end());
    match deserializer.deserialize_any(WordOrNumber)? {
        Written::Word(word) => Err(refused(word, allowed)),
        Written::Number(number) => T::try_from(number)
            .ok()
            .filter(|value| bounds.contains(value))
            .ok_or_else(|| refused(number, allowed)),
    }
}

/// A path that does not depend on the agent's working directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "PathBuf")]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// One of the defaults, which are absolute.
    pub(super) fn known(path: &str) -> Self {
        Self(PathBuf::from(path))
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// A path is not absolute.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is refused; allowed: an absolute path (/run/towpath)")]
pub struct NotAbsolute(PathBuf);

impl TryFrom<PathBuf> for AbsolutePath {
    type Error = NotAbsolute;

    fn try_from(path: PathBuf) -> Result<Self, NotAbsolute> {
        if path.is_absolute() {
            Ok(Self(path))
        } else {
            Err(NotAbsolute(path))
        }
    }
}

/// The name of a network device, as the kernel allows it (`dev_valid_name` in `net/core/dev.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct DeviceName(String);

impl DeviceName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text is not the name of a device.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is refused; allowed: the name of a device, 1 to 15 bytes without '/', ':' and spaces (ens5)"
)]
pub struct NotADevice(String);

impl TryFrom<String> for DeviceName {
    type Error = NotADevice;

    fn try_from(name: String) -> Result<Self, NotADevice> {
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
        let is_valid =
            (1..16).contains(&name.len()) && name != "." && name != ".." && !name.contains(bad);
        if is_valid {
            Ok(Self(name))
        } else {
            Err(NotADevice(name))
        }
    }
}

/// An MTU that a pod's interface can have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Mtu(#[schemars(range(min = MTU_MIN, max = MTU_MAX))] u32);

impl Mtu {
    /// The MTU, in bytes.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(deserializer, MTU_MIN..=MTU_MAX, "").map(Self)
    }
}

/// Entries of the flow cache for each CPU, of 128 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheEntries(#[schemars(range(max = Self::MAX))] u32);

impl CacheEntries {
    /// Most entries: 8 MiB for each CPU.
    const MAX: u32 = 65_536;

    /// Number of entries; 0 for no cache.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for CacheEntries {
    fn default() -> Self {
        Self(DEFAULT_CACHE)
    }
}

impl<'de> Deserialize<'de> for CacheEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(deserializer)?;
        u32::try_from(value)
            .ok()
            .filter(|entries| *entries == 0 || entries.is_power_of_two() && *entries <= Self::MAX)
            .map(Self)
            .ok_or_else(|| {
                refused(
                    value,
                    format_args!("0, or a power of two up to {}", Self::MAX),
                )
            })
    }
}

/// Our part of the packet mark, written as an integer or as a text in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", extend("type" = ["string", "integer"]))]
pub struct MarkMask(MarkLayout);

impl MarkMask {
    /// The layout within the mask.
    #[must_use]
    pub fn layout(self) -> MarkLayout {
        self.0
    }

    fn new<E: Error>(value: impl fmt::Debug, mask: Option<u32>) -> Result<Self, E> {
        let allowed = "a mask of 32 bits, hexadecimal (0xff000000)";
        let mask = mask.ok_or_else(|| refused(&value, allowed))?;
        MarkLayout::new(mask)
            .map(Self)
            .map_err(|e| refused(&value, format_args!("{allowed}; {e}")))
    }
}

impl Default for MarkMask {
    fn default() -> Self {
        Self(MarkLayout::DEFAULT)
    }
}

impl Serialize for MarkMask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#010x}", self.0.mask()))
    }
}

/// A number that may have to be written as a word or in another base.
struct WordOrNumber;

enum Written {
    Word(String),
    Number(i64),
}

impl Visitor<'_> for WordOrNumber {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or an integer")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
        Ok(Written::Word(text.to_owned()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
        Ok(Written::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Written, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        i64::try_from(number)
            .map(Written::Number)
            .map_err(too_large)
    }
}

impl<'de> Deserialize<'de> for MarkMask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(WordOrNumber)? {
            Written::Number(number) => Self::new(number, u32::try_from(number).ok()),
            Written::Word(text) => {
                let mask = text
                    .strip_prefix("0x")
                    .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok());
                Self::new(text, mask)
            }
        }
    }
}

/// The routing protocol that our routes and rules carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", extend("type" = ["string", "integer"]))]
pub struct RouteProtocol(u8);

impl RouteProtocol {
    /// `RTPROT_KERNEL` in `include/uapi/linux/rtnetlink.h`.
    const KERNEL: Self = Self(2);
    /// Numbers up to `RTPROT_STATIC` have meanings of their own.
    const FIRST_FREE: u8 = 5;

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for RouteProtocol {
    fn default() -> Self {
        Self::KERNEL
    }
}

impl Serialize for RouteProtocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::KERNEL {
            serializer.serialize_str("kernel")
        } else {
            serializer.serialize_u8(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for RouteProtocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "kernel, or a number from 5 to 255";
        match deserializer.deserialize_any(WordOrNumber)? {
            Written::Word(word) if word == "kernel" => Ok(Self::KERNEL),
            Written::Word(word) => Err(refused(word, allowed)),
            Written::Number(number) => u8::try_from(number)
                .ok()
                .map(Self)
                .filter(|p| *p == Self::KERNEL || p.0 >= Self::FIRST_FREE)
                .ok_or_else(|| refused(number, allowed)),
        }
    }
}

/// A unicast address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "String")]
pub struct UnicastAddr(pub(super) IpAddr);

impl<'de> Deserialize<'de> for UnicastAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse::<IpAddr>()
            .ok()
            .filter(|a| !a.is_multicast() && !a.is_unspecified() && !a.is_loopback())
            .map(Self)
            .ok_or_else(|| {
                refused(
                    &text,
                    "a unicast IPv4 or IPv6 address (169.254.20.10, 2001:db8::5)",
                )
            })
    }
}
