//! Answers of EC2 as values of `cloud`. A field that cannot be used fails the answer by name: a
//! listing without one of its objects would pass for a listing in which that object is gone.

mod eni;
mod field;
mod instance;
mod network;

pub(crate) use self::eni::eni;
pub(crate) use self::field::{FieldError, Object};
pub(crate) use self::instance::{instance, type_info};
pub(crate) use self::network::{elastic, group, route_table, subnet, vpc};
