use super::request;
use crate::call::{Call, Change, Request, What};
use crate::error::Result;
use crate::family::Family;
use crate::server::wire::model::MODEL;

fn read(form: &[(&str, &str)]) -> Result<Request> {
    let version = ("Version", "2016-11-15");
    let pairs = form.iter().chain([&version]);
    request(pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

fn call(form: &[(&str, &str)]) -> Call {
    read(form).unwrap().call
}

fn code(form: &[(&str, &str)]) -> String {
    read(form).unwrap_err().code
}

const CREATE: (&str, &str) = ("Action", "CreateNetworkInterface");
const SUBNET: (&str, &str) = ("SubnetId", "subnet-a");
const ENI: (&str, &str) = ("NetworkInterfaceId", "eni-1");
const MODIFY: (&str, &str) = ("Action", "ModifyNetworkInterfaceAttribute");

#[test]
fn the_model_has_every_action_and_no_other() {
    let of_calls = [
        "AssignIpv6Addresses",
        "AssignPrivateIpAddresses",
        "AssociateAddress",
        "AttachNetworkInterface",
        "CreateNetworkInterface",
        "CreateTags",
        "DeleteNetworkInterface",
        "DetachNetworkInterface",
        "DisassociateAddress",
        "ModifyNetworkInterfaceAttribute",
        "UnassignIpv6Addresses",
        "UnassignPrivateIpAddresses",
    ];
    let listings = What::ALL.map(What::action);
    let mut known: Vec<_> = of_calls.into_iter().chain(listings).collect();
    known.sort_unstable();
    let modelled: Vec<_> = MODEL.actions.keys().map(String::as_str).collect();
    assert_eq!(known, modelled);
}

#[test]
fn a_creation_has_all_its_parameters() {
    let call = call(&[
        CREATE,
        SUBNET,
        ("Description", "towpath"),
        ("ClientToken", "token-1"),
        ("InterfaceType", "interface"),
        ("SecurityGroupId.1", "sg-1"),
        ("SecurityGroupId.2", "sg-2"),
        ("PrivateIpAddresses.1.Primary", "true"),
        ("PrivateIpAddresses.1.PrivateIpAddress", "10.0.0.9"),
        ("PrivateIpAddresses.2.PrivateIpAddress", "10.0.0.10"),
        ("Ipv6Prefix.1.Ipv6Prefix", "2001:db8:0:0:1::/80"),
        ("TagSpecification.1.ResourceType", "network-interface"),
        ("TagSpecification.1.Tag.1.Key", "role"),
        ("TagSpecification.1.Tag.1.Value", "pods"),
        ("TagSpecification.1.Tag.2.Key", "empty"),
    ]);
    let Call::Create(create) = call else {
        panic!("{call:?}");
    };
    assert_eq!(create.subnet, "subnet-a");
    assert_eq!(create.description, "towpath");
    assert_eq!(create.token.as_deref(), Some("token-1"));
    assert_eq!(create.groups, ["sg-1", "sg-2"]);
    assert_eq!(create.primary, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(
        create.ipv4.addresses,
        ["10.0.0.10".parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(
        create.ipv6.prefixes,
        ["2001:db8:0:0:1::/80".parse().unwrap()]
    );
    assert_eq!(create.tags["role"], "pods");
    assert_eq!(create.tags["empty"], "");
}

#[test]
fn elements_of_a_list_are_in_the_order_of_their_numbers() {
    let form: Vec<_> = (1..=11)
        .map(|it| (format!("InstanceId.{it}"), format!("i-{it}")))
        .collect();
    let mut pairs = vec![("Action", "DescribeInstances")];
    pairs.extend(
        form.iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    let Call::Describe(describe) = call(&pairs) else {
        panic!("no listing");
    };
    let expected: Vec<_> = (1..=11).map(|it| format!("i-{it}")).collect();
    assert_eq!(describe.ids, expected);
}

#[test]
fn a_listing_has_filters_and_a_page() {
    let form = [
        ("Action", "DescribeNetworkInterfaces"),
        ("Filter.1.Name", "vpc-id"),
        ("Filter.1.Value.1", "vpc-1"),
        ("Filter.1.Value.2", "vpc-2"),
        ("Filter.2.Name", "tag:role"),
        ("Filter.2.Value.1", "pods"),
        ("MaxResults", "500"),
        ("NextToken", "after:eni-1"),
        ("DryRun", "true"),
    ];
    let request = read(&form).unwrap();
    assert!(request.dry_run);
    let Call::Describe(describe) = request.call else {
        panic!("no listing");
    };
    assert_eq!(describe.what, What::Interfaces);
    assert_eq!(describe.filters[0].values, ["vpc-1", "vpc-2"]);
    assert_eq!(describe.filters[1].name, "tag:role");
    assert_eq!(
        (describe.max, describe.next.as_deref()),
        (Some(500), Some("after:eni-1"))
    );
}

#[test]
fn addresses_of_both_families_are_assigned() {
    let cases = [
        (
            "AssignPrivateIpAddresses",
            "PrivateIpAddress.1",
            "10.0.0.9",
            Family::V4,
        ),
        (
            "AssignPrivateIpAddresses",
            "Ipv4Prefix.1",
            "10.0.0.16/28",
            Family::V4,
        ),
        (
            "AssignIpv6Addresses",
            "Ipv6Addresses.1",
            "2001:db8::9",
            Family::V6,
        ),
        (
            "AssignIpv6Addresses",
            "Ipv6Prefix.1",
            "2001:db8:0:0:1::/80",
            Family::V6,
        ),
    ];
    for (action, name, value, family) in cases {
        let Call::Assign(assign) = call(&[("Action", action), ENI, (name, value)]) else {
            panic!("{action}");
        };
        assert_eq!(
            (assign.family, assign.ask.singles() + assign.ask.blocks()),
            (family, 1)
        );
    }
    let count = call(&[
        ("Action", "AssignPrivateIpAddresses"),
        ENI,
        ("Ipv4PrefixCount", "3"),
        ("AllowReassignment", "true"),
    ]);
    let Call::Assign(assign) = count else {
        panic!("{count:?}");
    };
    assert_eq!((assign.ask.prefix_count, assign.reassign), (3, true));
}

#[test]
fn a_change_has_one_attribute() {
    let mark = [
        MODIFY,
        ENI,
        ("Attachment.AttachmentId", "eni-attach-1"),
        ("Attachment.DeleteOnTermination", "true"),
    ];
    let Call::Modify(modify) = call(&mark) else {
        panic!("no change");
    };
    let attachment = "eni-attach-1".to_owned();
    let expected = Change::DeleteOnTermination {
        attachment,
        value: true,
    };
    assert_eq!(modify.change, expected);
    let two = [
        MODIFY,
        ENI,
        ("Description.Value", "a"),
        ("SecurityGroupId.1", "sg-1"),
    ];
    assert_eq!(code(&two), "InvalidParameterCombination");
    assert_eq!(code(&[MODIFY, ENI]), "InvalidParameterCombination");
    assert_eq!(code(&mark[..3]), "MissingParameter");
}

#[test]
fn requests_that_ec2_does_not_know_are_refused_by_its_codes() {
    let detach = ("Action", "DetachNetworkInterface");
    let attachment = ("AttachmentId", "eni-attach-1");
    let cases: [(&[(&str, &str)], &str); 13] = [
        (&[], "MissingAction"),
        (&[("Action", "RunInstances")], "InvalidAction"),
        (&[CREATE], "MissingParameter"),
        (&[CREATE, SUBNET, ("Subnet", "a")], "UnknownParameter"),
        (
            &[CREATE, SUBNET, ("SecurityGroupId.0", "sg-1")],
            "UnknownParameter",
        ),
        (
            &[CREATE, SUBNET, ("SecurityGroupId", "sg-1")],
            "UnknownParameter",
        ),
        (&[CREATE, SUBNET, SUBNET], "MalformedQueryString"),
        (
            &[CREATE, SUBNET, ("Ipv4PrefixCount", "many")],
            "InvalidParameterValue",
        ),
        (
            &[CREATE, SUBNET, ("Ipv4PrefixCount", "-1")],
            "InvalidParameterValue",
        ),
        (
            &[CREATE, SUBNET, ("PrivateIpAddress", "10.0.0")],
            "InvalidParameterValue",
        ),
        (
            &[CREATE, SUBNET, ("DryRun", "yes")],
            "InvalidParameterValue",
        ),
        (
            &[("Action", "CreateTags"), ("ResourceId.1", "eni-1")],
            "MissingParameter",
        ),
        (
            &[detach, attachment, ("Force", "true")],
            "UnsupportedOperation",
        ),
    ];
    for (form, expected) in cases {
        assert_eq!(code(form), expected, "{form:?}");
    }
    let version = [("Action", "DescribeVpcs"), ("Version", "2014-10-01")];
    let pairs = version.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(request(pairs).unwrap_err().code, "NoSuchVersion");
}

#[test]
fn a_creation_tags_its_interface_alone_and_each_key_once() {
    let tag = [
        CREATE,
        SUBNET,
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "a"),
    ];
    assert_eq!(code(&tag), "InvalidParameterValue");
    let twice = [
        CREATE,
        SUBNET,
        ("TagSpecification.1.ResourceType", "network-interface"),
        ("TagSpecification.1.Tag.1.Key", "a"),
        ("TagSpecification.1.Tag.2.Key", "a"),
    ];
    assert_eq!(code(&twice), "InvalidParameterValue");
}

#[test]
fn a_message_names_the_whole_path_of_a_parameter() {
    let form = [CREATE, SUBNET, ("Ipv6Addresses.2.Ipv6Address", "x")];
    let message = read(&form).unwrap_err().message;
    let expected = "Value (x) for parameter Ipv6Addresses.2.Ipv6Address is invalid. \
                    Expected an IPv6 address.";
    assert_eq!(message, expected);
}
