//! Refusals of EC2, classed by their code.

use std::fmt;

use crate::Action;

/// The class of a refusal, which decides the reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Too many calls.
    Throttled,
    /// An object is not there, or not there yet.
    NotFound,
    /// The instance is not there.
    InstanceGone,
    /// The object's state does not allow it now.
    NotNow,
    /// The subnet has no room for the request.
    SubnetFull,
    /// The instance can have no more ENIs.
    AdapterLimit,
    /// The ENI can have no more blocks.
    SlotLimit,
    /// The account can have no more ENIs.
    Quota,
    /// The device index is taken.
    IndexTaken,
    /// The Elastic IP address has an association already, or is released.
    AddressTaken,
    /// The operator has no right to make this call.
    Denied,
    /// The operator's credentials are not accepted.
    Credentials,
    /// No answer came, so the effect is unknown.
    Unanswered,
    /// The client token was used with other parameters.
    TokenMismatch,
    /// The call itself is wrong.
    Invalid,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Failure {
    /// The call.
    pub action: Action,
    /// Its class.
    pub class: Class,
    /// EC2's code; empty where no answer came.
    pub code: String,
    /// EC2's message, or the reason that no answer came.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            action,
            code,
            message,
            ..
        } = self;
        match code.as_str() {
            "" => write!(f, "{action}: no answer: {message}"),
            code => write!(f, "{action}: {code}: {message}"),
        }
    }
}

impl Failure {
    /// A failure that EC2 answered with.
    #[must_use]
    pub fn answered(action: Action, status: u16, code: &str, message: &str) -> Self {
        Self {
            action,
            class: class(action, status, code, message),
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    /// A call without an answer.
    #[must_use]
    pub fn unanswered(action: Action, reason: &str) -> Self {
        Self {
            action,
            class: Class::Unanswered,
            code: String::new(),
            message: reason.to_owned(),
        }
    }
}

/// Classes a refusal. The text counts for `InvalidParameterValue` alone, a code of many uses.
fn class(action: Action, status: u16, code: &str, message: &str) -> Class {
    if let Some(class) = by_code(code) {
        return class;
    }
    match (code, action) {
        ("InvalidParameterValue", Action::Attach) => Class::IndexTaken,
        ("InvalidParameterValue", Action::Delete) if message.contains("in use") => Class::NotNow,
        ("InvalidParameterValue", Action::Create | Action::Assign | Action::AssignIpv6)
            if message.contains("not enough free") =>
        {
            Class::SubnetFull
        }
        _ if code.starts_with("Throttling") || status == 503 || status == 429 => Class::Throttled,
        _ if code.starts_with("InvalidInstanceID") => Class::InstanceGone,
        _ if code.starts_with("InvalidSubnet") => Class::SubnetFull,
        _ if code.starts_with("InvalidGroup") || code.starts_with("InvalidSecurityGroup") => {
            Class::Invalid
        }
        _ if code.ends_with(".NotFound") => Class::NotFound,
        _ if code.starts_with("Unrecognized") => Class::Credentials,
        _ if status >= 500 || code.is_empty() => Class::Unanswered,
        _ => Class::Invalid,
    }
}

fn by_code(code: &str) -> Option<Class> {
    Some(match code {
        "RequestLimitExceeded"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "TooManyRequestsException"
        | "EC2ThrottledException"
        | "SlowDown" => Class::Throttled,
        "InternalError" | "InternalFailure" => Class::Unanswered,
        "IncorrectState" | "IncorrectInstanceState" => Class::NotNow,
        "InsufficientFreeAddressesInSubnet" | "InsufficientCidrBlocks" => Class::SubnetFull,
        "AttachmentLimitExceeded" => Class::AdapterLimit,
        "PrivateIpAddressLimitExceeded" => Class::SlotLimit,
        "NetworkInterfaceLimitExceeded" => Class::Quota,
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" | "OptInRequired" => {
            Class::Denied
        }
        "AuthFailure"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "RequestExpired"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken" => Class::Credentials,
        "IdempotentParameterMismatch" => Class::TokenMismatch,
        "Resource.AlreadyAssociated" | "InvalidAllocationID.NotFound" => Class::AddressTaken,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &[(Action, u16, &str, &str, Class)] = &[
        (
            Action::DescribeEnis,
            503,
            "RequestLimitExceeded",
            "",
            Class::Throttled,
        ),
        (
            Action::Create,
            400,
            "ThrottlingException",
            "",
            Class::Throttled,
        ),
        (Action::Create, 503, "Unavailable", "", Class::Throttled),
        (
            Action::Attach,
            400,
            "InvalidNetworkInterfaceID.NotFound",
            "",
            Class::NotFound,
        ),
        (
            Action::Modify,
            400,
            "InvalidAttachmentID.NotFound",
            "",
            Class::NotFound,
        ),
        (
            Action::Attach,
            400,
            "InvalidInstanceID.NotFound",
            "",
            Class::InstanceGone,
        ),
        (
            Action::Attach,
            400,
            "InvalidInstanceID.Malformed",
            "",
            Class::InstanceGone,
        ),
        (
            Action::Attach,
            400,
            "IncorrectState",
            "is not 'running'",
            Class::NotNow,
        ),
        (
            Action::Delete,
            400,
            "InvalidParameterValue",
            "is currently in use",
            Class::NotNow,
        ),
        (
            Action::Attach,
            400,
            "InvalidParameterValue",
            "is in use",
            Class::IndexTaken,
        ),
        (
            Action::Assign,
            400,
            "InsufficientCidrBlocks",
            "",
            Class::SubnetFull,
        ),
        (
            Action::Assign,
            400,
            "InsufficientFreeAddressesInSubnet",
            "",
            Class::SubnetFull,
        ),
        (
            Action::Assign,
            400,
            "InvalidParameterValue",
            "There are not enough free address prefixes",
            Class::SubnetFull,
        ),
        (
            Action::Assign,
            400,
            "InvalidParameterValue",
            "bad",
            Class::Invalid,
        ),
        (
            Action::Create,
            400,
            "InvalidSubnetID.NotFound",
            "",
            Class::SubnetFull,
        ),
        (
            Action::Create,
            400,
            "InvalidGroup.NotFound",
            "",
            Class::Invalid,
        ),
        (
            Action::Attach,
            400,
            "AttachmentLimitExceeded",
            "",
            Class::AdapterLimit,
        ),
        (
            Action::Assign,
            400,
            "PrivateIpAddressLimitExceeded",
            "",
            Class::SlotLimit,
        ),
        (
            Action::Create,
            400,
            "NetworkInterfaceLimitExceeded",
            "",
            Class::Quota,
        ),
        (
            Action::Create,
            403,
            "UnauthorizedOperation",
            "",
            Class::Denied,
        ),
        (Action::Create, 401, "AuthFailure", "", Class::Credentials),
        (
            Action::Create,
            400,
            "UnrecognizedClientException",
            "",
            Class::Credentials,
        ),
        (Action::Create, 500, "InternalError", "", Class::Unanswered),
        (Action::Create, 502, "", "<html>", Class::Unanswered),
        (
            Action::Create,
            400,
            "IdempotentParameterMismatch",
            "",
            Class::TokenMismatch,
        ),
        (Action::Create, 400, "MissingParameter", "", Class::Invalid),
        (
            Action::Associate,
            400,
            "Resource.AlreadyAssociated",
            "",
            Class::AddressTaken,
        ),
        (
            Action::Associate,
            400,
            "InvalidAllocationID.NotFound",
            "",
            Class::AddressTaken,
        ),
        (
            Action::Associate,
            400,
            "InvalidNetworkInterfaceID.NotFound",
            "",
            Class::NotFound,
        ),
    ];

    #[test]
    fn codes_have_classes() {
        for (action, status, code, message, expected) in CASES {
            let failure = Failure::answered(*action, *status, code, message);
            assert_eq!(failure.class, *expected, "{failure}");
        }
    }

    #[test]
    fn a_failure_names_the_call_and_the_cause() {
        let lost = Failure::unanswered(Action::Create, "no reply within 5 s");
        assert_eq!(
            lost.to_string(),
            "CreateNetworkInterface: no answer: no reply within 5 s"
        );
        let denied = Failure::answered(Action::Delete, 403, "UnauthorizedOperation", "You may not");
        assert_eq!(
            denied.to_string(),
            "DeleteNetworkInterface: UnauthorizedOperation: You may not"
        );
    }
}
