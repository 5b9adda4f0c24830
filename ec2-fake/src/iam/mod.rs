//! The judge of IAM: a policy against every resource that AWS authorises a call on.

mod context;
mod policy;
mod resources;
#[cfg(test)]
mod tests;

pub(crate) use context::Context;
pub use policy::{Policy, PolicyError};

use crate::call::Call;
use crate::cloud::Cloud;
use crate::error::{Failure, Result};

/// One question to a policy.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The action, without its service.
    pub(crate) action: &'static str,
    /// The resource's ARN.
    pub(crate) resource: String,
    /// The condition keys and their values.
    pub(crate) context: Context,
}

impl Cloud {
    /// Judges a call of a caller.
    pub(crate) fn authorise(&self, caller: &str, call: &Call) -> Result<()> {
        if self.has_no_principals() {
            return Ok(());
        }
        let principal = self.principal(caller).ok_or_else(|| {
            Failure::new(
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            )
        })?;
        if principal.expired {
            return Err(Failure::new("RequestExpired", "Request has expired."));
        }
        let Some(policy) = &principal.policy else {
            return Ok(());
        };
        for question in self.questions(call) {
            if !policy.allows(&question) {
                return Err(Failure::new(
                    "UnauthorizedOperation",
                    format!(
                        "You are not authorized to perform this operation. User: {caller} is not \
                         authorized to perform: ec2:{} on resource: {}",
                        question.action, question.resource
                    ),
                ));
            }
        }
        Ok(())
    }
}
