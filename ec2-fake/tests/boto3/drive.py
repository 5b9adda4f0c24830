"""Drives the fake by boto3: `drive.py CASE ENDPOINT`. A case fails by an exception.

boto3 checks what it sends and reads what it gets by Amazon's own model of EC2: it is the judge of the
fake's protocol.
"""

import datetime
import signal
import sys
import time

import boto3
import botocore.auth
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

ENDPOINT = sys.argv[2]
SECRET = "secret"
# A fake that does not answer fails the case and not the whole suite.
LONGEST = 90


def client(key="OPERATOR", secret=SECRET, region="eu-central-1", **settings):
    config = Config(retries={"total_max_attempts": 1}, **settings)
    return boto3.client(
        "ec2",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=region,
        endpoint_url=ENDPOINT,
        config=config,
    )


def equal(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def refused(code, call, status=None, **parameters):
    """A call that EC2 refuses by a code, and by an HTTP status where one is given."""
    try:
        answer = call(**parameters)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{parameters}: found {error}, expected {code}"
        assert error.response["Error"]["Message"], parameters
        assert error.response["ResponseMetadata"]["RequestId"], parameters
        if status is not None:
            equal(error.response["ResponseMetadata"]["HTTPStatusCode"], status)
        return
    raise AssertionError(f"{parameters}: expected {code}, answered {answer}")


def altered(change):
    """A client whose forms are changed before they are signed and sent."""
    ec2 = client(parameter_validation=False)

    def before_call(params, **_):
        # A handler that returns something stands in for the call.
        change(params["body"])

    ec2.meta.events.register("before-call.ec2", before_call)
    return ec2


def named(name, *values):
    return {"Name": name, "Values": list(values)}


def pairs(tags):
    return {tag["Key"]: tag["Value"] for tag in tags}


def eni(ec2, id):
    return ec2.describe_network_interfaces(NetworkInterfaceIds=[id])["NetworkInterfaces"][0]


def created(ec2, **parameters):
    answer = ec2.create_network_interface(**{"SubnetId": "subnet-a", **parameters})
    return answer["NetworkInterface"]["NetworkInterfaceId"]


def listings():
    ec2 = client()
    (vpc,) = ec2.describe_vpcs(VpcIds=["vpc-1"])["Vpcs"]
    equal(vpc["CidrBlock"], "10.0.0.0/16")
    cidrs = [it["CidrBlock"] for it in vpc["CidrBlockAssociationSet"]]
    equal(cidrs, ["10.0.0.0/16", "100.64.0.0/16"])
    ipv6 = vpc["Ipv6CidrBlockAssociationSet"]
    equal([it["Ipv6CidrBlock"] for it in ipv6], ["2001:db8::/56"])
    equal(ipv6[0]["Ipv6CidrBlockState"]["State"], "associated")

    subnets = ec2.describe_subnets(Filters=[named("vpc-id", "vpc-1")])["Subnets"]
    subnets = {it["SubnetId"]: it for it in subnets}
    equal(sorted(subnets), ["subnet-6", "subnet-a", "subnet-b"])
    subnet = subnets["subnet-a"]
    equal((subnet["CidrBlock"], subnet["AvailabilityZone"]), ("10.0.0.0/24", "eu-central-1a"))
    equal(subnet["AvailableIpAddressCount"], 256 - 5 - 3)
    equal(pairs(subnet["Tags"]), {"role": "pods", "empty": "", "text": "<a> & \"b\""})
    equal(subnet["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"], "2001:db8::/64")
    equal((subnets["subnet-6"]["Ipv6Native"], "CidrBlock" in subnets["subnet-6"]), (True, False))

    (table,) = ec2.describe_route_tables(RouteTableIds=["rtb-1"])["RouteTables"]
    routes = {
        it.get("DestinationCidrBlock", it.get("DestinationIpv6CidrBlock")): it
        for it in table["Routes"]
    }
    equal(routes["0.0.0.0/0"]["NatGatewayId"], "nat-1")
    equal(routes["::/0"]["EgressOnlyInternetGatewayId"], "eigw-1")
    equal(routes["10.0.0.0/16"]["GatewayId"], "local")
    associations = [(it["Main"], it.get("SubnetId")) for it in table["Associations"]]
    equal(associations, [(True, None), (False, "subnet-a")])
    equal(table["Associations"][0]["AssociationState"]["State"], "associated")

    groups = ec2.describe_security_groups(Filters=[named("tag:kubernetes.io/cluster/c", "*")])
    equal([it["GroupId"] for it in groups["SecurityGroups"]], ["sg-1"])
    groups = ec2.get_security_groups_for_vpc(VpcId="vpc-1")["SecurityGroupForVpcs"]
    equal([(it["GroupId"], it["PrimaryVpcId"]) for it in groups], [("sg-1", "vpc-1"), ("sg-2", "vpc-1")])

    reservations = ec2.describe_instances(InstanceIds=["i-1", "i-4"])["Reservations"]
    first, ended = [it["Instances"][0] for it in reservations]
    equal((first["State"], first["InstanceType"]), ({"Code": 16, "Name": "running"}, "m5.large"))
    equal((first["VpcId"], first["SubnetId"]), ("vpc-1", "subnet-a"))
    equal(first["Placement"]["AvailabilityZone"], "eu-central-1a")
    (primary,) = first["NetworkInterfaces"]
    equal(primary["Attachment"]["DeviceIndex"], 0)
    equal(first["PrivateIpAddress"], primary["PrivateIpAddress"])
    assert isinstance(first["LaunchTime"], datetime.datetime), first
    equal((ended["State"]["Name"], "VpcId" in ended), ("terminated", False))

    kinds = ec2.describe_instance_types(InstanceTypes=["c6in.32xlarge", "m5.metal"])
    card, metal = sorted(kinds["InstanceTypes"], key=lambda it: it["InstanceType"])
    network = card["NetworkInfo"]
    equal((network["MaximumNetworkCards"], network["MaximumNetworkInterfaces"]), (2, 16))
    equal([it["MaximumNetworkInterfaces"] for it in network["NetworkCards"]], [8, 8])
    equal(network["Ipv4AddressesPerInterface"], 50)
    equal((metal["BareMetal"], "Hypervisor" in metal), (True, False))
    equal(card["ProcessorInfo"]["SupportedArchitectures"], ["x86_64"])

    (address,) = ec2.describe_addresses(PublicIps=["198.51.100.1"])["Addresses"]
    equal((address["AllocationId"], address["Domain"]), ("eipalloc-1", "vpc"))
    tags = ec2.describe_tags(Filters=[named("resource-type", "subnet"), named("key", "role")])
    equal([(it["ResourceId"], it["Value"]) for it in tags["Tags"]], [("subnet-a", "pods")])
    equal(ec2.describe_vpcs(Filters=[named("vpc-id", "vpc-9")])["Vpcs"], [])


def changes():
    ec2 = client()
    tags = [{"Key": "role", "Value": "pods"}, {"Key": "empty", "Value": ""}]
    wanted = {
        "SubnetId": "subnet-a",
        "Description": "towpath",
        "Groups": ["sg-1", "sg-2"],
        "Ipv4PrefixCount": 2,
        "Ipv6PrefixCount": 1,
        "ClientToken": "token-1",
        "TagSpecifications": [{"ResourceType": "network-interface", "Tags": tags}],
    }
    answer = ec2.create_network_interface(**wanted)
    made, id = answer["NetworkInterface"], answer["NetworkInterface"]["NetworkInterfaceId"]
    equal(answer["ClientToken"], "token-1")
    equal(pairs(made["TagSet"]), pairs(tags))
    equal([it["GroupId"] for it in made["Groups"]], ["sg-1", "sg-2"])
    equal(made["Groups"][0]["GroupName"], "default")
    equal((len(made["Ipv4Prefixes"]), len(made["Ipv6Prefixes"])), (2, 1))
    equal((made["Status"], made["InterfaceType"]), ("available", "interface"))
    again = ec2.create_network_interface(**wanted)["NetworkInterface"]
    equal(again["NetworkInterfaceId"], id)

    named_addresses = created(
        ec2,
        PrivateIpAddresses=[
            {"PrivateIpAddress": "10.0.0.77", "Primary": True},
            {"PrivateIpAddress": "10.0.0.78", "Primary": False},
        ],
        Ipv6Addresses=[{"Ipv6Address": "2001:db8::77"}],
    )
    shown = eni(ec2, named_addresses)
    equal(shown["PrivateIpAddress"], "10.0.0.77")
    addresses = [(it["PrivateIpAddress"], it["Primary"]) for it in shown["PrivateIpAddresses"]]
    equal(addresses, [("10.0.0.77", True), ("10.0.0.78", False)])
    equal([it["Ipv6Address"] for it in shown["Ipv6Addresses"]], ["2001:db8::77"])
    prefixes = created(ec2, Ipv4Prefixes=[{"Ipv4Prefix": "10.0.0.128/28"}])
    equal(eni(ec2, prefixes)["Ipv4Prefixes"], [{"Ipv4Prefix": "10.0.0.128/28"}])
    counted = created(ec2, SecondaryPrivateIpAddressCount=3, Ipv6AddressCount=2)
    shown = eni(ec2, counted)
    equal((len(shown["PrivateIpAddresses"]), len(shown["Ipv6Addresses"])), (4, 2))

    attachment = ec2.attach_network_interface(
        NetworkInterfaceId=id, InstanceId="i-1", DeviceIndex=1, NetworkCardIndex=0
    )
    equal(attachment["NetworkCardIndex"], 0)
    attachment = attachment["AttachmentId"]
    ec2.modify_network_interface_attribute(
        NetworkInterfaceId=id,
        Attachment={"AttachmentId": attachment, "DeleteOnTermination": True},
    )
    ec2.modify_network_interface_attribute(NetworkInterfaceId=id, Groups=["sg-2"])
    ec2.modify_network_interface_attribute(NetworkInterfaceId=id, Description={"Value": "other"})
    ec2.modify_network_interface_attribute(NetworkInterfaceId=id, SourceDestCheck={"Value": False})
    ec2.create_tags(Resources=[id], Tags=[{"Key": "late", "Value": "yes"}])
    shown = eni(ec2, id)
    equal(shown["Attachment"]["AttachmentId"], attachment)
    equal((shown["Attachment"]["InstanceId"], shown["Attachment"]["DeviceIndex"]), ("i-1", 1))
    equal((shown["Attachment"]["Status"], shown["Status"]), ("attached", "in-use"))
    equal(shown["Attachment"]["DeleteOnTermination"], True)
    assert isinstance(shown["Attachment"]["AttachTime"], datetime.datetime), shown
    equal([it["GroupId"] for it in shown["Groups"]], ["sg-2"])
    equal((shown["Description"], shown["SourceDestCheck"]), ("other", False))
    equal(pairs(shown["TagSet"])["late"], "yes")
    addresses_of(ec2, id)
    elastic(ec2, id)

    ec2.detach_network_interface(AttachmentId=attachment)
    equal("Attachment" in eni(ec2, id), False)
    ec2.delete_network_interface(NetworkInterfaceId=id)
    refused("InvalidNetworkInterfaceID.NotFound", eni, ec2=ec2, id=id)


def addresses_of(ec2, id):
    answer = ec2.assign_private_ip_addresses(NetworkInterfaceId=id, Ipv4PrefixCount=1)
    (prefix,) = [it["Ipv4Prefix"] for it in answer["AssignedIpv4Prefixes"]]
    ec2.unassign_private_ip_addresses(NetworkInterfaceId=id, Ipv4Prefixes=[prefix])
    answer = ec2.assign_private_ip_addresses(NetworkInterfaceId=id, SecondaryPrivateIpAddressCount=1)
    (address,) = [it["PrivateIpAddress"] for it in answer["AssignedPrivateIpAddresses"]]
    ec2.unassign_private_ip_addresses(NetworkInterfaceId=id, PrivateIpAddresses=[address])
    answer = ec2.assign_private_ip_addresses(
        NetworkInterfaceId=id, PrivateIpAddresses=[address], AllowReassignment=True
    )
    equal(answer["NetworkInterfaceId"], id)
    answer = ec2.assign_ipv6_addresses(NetworkInterfaceId=id, Ipv6AddressCount=1)
    (ipv6,) = answer["AssignedIpv6Addresses"]
    answer = ec2.unassign_ipv6_addresses(NetworkInterfaceId=id, Ipv6Addresses=[ipv6])
    equal(answer["UnassignedIpv6Addresses"], [ipv6])
    answer = ec2.assign_ipv6_addresses(NetworkInterfaceId=id, Ipv6PrefixCount=1)
    (prefix,) = answer["AssignedIpv6Prefixes"]
    answer = ec2.unassign_ipv6_addresses(NetworkInterfaceId=id, Ipv6Prefixes=[prefix])
    equal(answer["UnassignedIpv6Prefixes"], [prefix])


def elastic(ec2, id):
    answer = ec2.associate_address(AllocationId="eipalloc-1", NetworkInterfaceId=id)
    association = answer["AssociationId"]
    shown = eni(ec2, id)["Association"]
    equal((shown["PublicIp"], shown["AssociationId"]), ("198.51.100.1", association))
    (address,) = ec2.describe_addresses(AllocationIds=["eipalloc-1"])["Addresses"]
    equal((address["NetworkInterfaceId"], address["InstanceId"]), (id, "i-1"))
    ec2.disassociate_address(AssociationId=association)
    answer = ec2.associate_address(AllocationId="eipalloc-1", InstanceId="i-1")
    ec2.disassociate_address(AssociationId=answer["AssociationId"])


def pages():
    ec2 = client()
    ids = [created(ec2, TagSpecifications=tag("pages")) for _ in range(12)]
    listings = [
        ("describe_network_interfaces", "NetworkInterfaces", {"Filters": [named("tag:of", "pages")]}),
        ("describe_tags", "Tags", {"Filters": [named("value", "pages")]}),
        ("describe_instance_types", "InstanceTypes", {}),
        ("describe_instances", "Reservations", {}),
        ("describe_route_tables", "RouteTables", {}),
        ("describe_security_groups", "SecurityGroups", {}),
        ("get_security_groups_for_vpc", "SecurityGroupForVpcs", {"VpcId": "vpc-1"}),
        ("describe_subnets", "Subnets", {}),
        ("describe_vpcs", "Vpcs", {}),
    ]
    for name, key, parameters in listings:
        paginator = ec2.get_paginator(name)
        read = list(paginator.paginate(PaginationConfig={"PageSize": 5}, **parameters))
        whole = getattr(ec2, name)(**parameters)[key]
        equal([it for page in read for it in page[key]], whole)
        equal(len(read), max(1, -(-len(whole) // 5)))
    first = ec2.describe_network_interfaces(MaxResults=5, Filters=[named("tag:of", "pages")])
    equal([it["NetworkInterfaceId"] for it in first["NetworkInterfaces"]], ids[:5])
    both = {"NetworkInterfaceIds": ids[:1], "MaxResults": 5}
    refused("InvalidParameterCombination", ec2.describe_network_interfaces, **both)
    refused("InvalidParameterValue", ec2.describe_network_interfaces, NextToken="x")
    for size in (4, 1001):
        refused("InvalidParameterValue", client(parameter_validation=False).describe_vpcs, MaxResults=size)


def tag(value):
    return [{"ResourceType": "network-interface", "Tags": [{"Key": "of", "Value": value}]}]


def every_call(ec2):
    """Each action with parameters that are carried out."""
    id = {"NetworkInterfaceId": "eni-1"}
    mutations = [
        (ec2.create_network_interface, {"SubnetId": "subnet-a"}),
        (ec2.attach_network_interface, {**id, "InstanceId": "i-1", "DeviceIndex": 1}),
        (ec2.detach_network_interface, {"AttachmentId": "eni-attach-1"}),
        (ec2.delete_network_interface, id),
        (ec2.modify_network_interface_attribute, {**id, "Description": {"Value": "a"}}),
        (ec2.create_tags, {"Resources": ["eni-1"], "Tags": [{"Key": "a", "Value": "b"}]}),
        (ec2.associate_address, {"AllocationId": "eipalloc-1", "InstanceId": "i-1"}),
        (ec2.disassociate_address, {"AssociationId": "eipassoc-1"}),
    ]
    untried = [
        (ec2.assign_private_ip_addresses, {**id, "Ipv4PrefixCount": 1}),
        (ec2.unassign_private_ip_addresses, {**id, "PrivateIpAddresses": ["10.0.0.9"]}),
        (ec2.assign_ipv6_addresses, {**id, "Ipv6PrefixCount": 1}),
        (ec2.unassign_ipv6_addresses, {**id, "Ipv6Addresses": ["2001:db8::9"]}),
    ]
    reads = [
        (ec2.describe_addresses, {}),
        (ec2.describe_instance_types, {}),
        (ec2.describe_instances, {}),
        (ec2.describe_network_interfaces, {}),
        (ec2.describe_route_tables, {}),
        (ec2.describe_security_groups, {}),
        (ec2.get_security_groups_for_vpc, {"VpcId": "vpc-1"}),
        (ec2.describe_subnets, {}),
        (ec2.describe_tags, {}),
        (ec2.describe_vpcs, {}),
    ]
    return mutations + reads, untried


def trials():
    tried, _ = every_call(client())
    for call, parameters in tried:
        refused("DryRunOperation", call, status=412, DryRun=True, **parameters)
    tried, untried = every_call(client("NOBODY"))
    for call, parameters in tried:
        refused("UnauthorizedOperation", call, status=403, DryRun=True, **parameters)
    for call, parameters in untried:
        refused("UnauthorizedOperation", call, status=403, **parameters)


def callers():
    vpcs = lambda **settings: client(**settings).describe_vpcs
    client().describe_vpcs()
    refused("AuthFailure", vpcs(key="UNKNOWN"), status=401)
    refused("SignatureDoesNotMatch", vpcs(secret="wrong"), status=403)
    refused("SignatureDoesNotMatch", vpcs(region="eu-west-1"), status=403)
    refused("MissingAuthenticationToken", vpcs(signature_version=UNSIGNED), status=403)
    refused("RequestExpired", vpcs(key="EXPIRED"))
    incomplete = client()
    incomplete.meta.events.register("before-send.ec2", incompletely_signed)
    refused("IncompleteSignature", incomplete.describe_vpcs)
    current = botocore.auth.get_current_datetime
    for minutes, is_expired in ((14, False), (16, True), (-16, True)):
        shift = datetime.timedelta(minutes=minutes)
        botocore.auth.get_current_datetime = lambda *arguments: current(*arguments) + shift
        if is_expired:
            refused("RequestExpired", vpcs())
        else:
            client().describe_vpcs()
    botocore.auth.get_current_datetime = current


def incompletely_signed(request, **_):
    request.headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=OPERATOR"


def errors():
    ec2 = client()
    create, attach = ec2.create_network_interface, ec2.attach_network_interface
    assign, tags = ec2.assign_private_ip_addresses, ec2.create_tags
    loose, other = created(ec2), created(ec2)
    subnet, on = {"SubnetId": "subnet-a"}, {"NetworkInterfaceId": loose}
    absent = "eni-" + "9" * 17

    refused("InvalidSubnetID.NotFound", create, SubnetId="subnet-9")
    refused("InvalidGroup.NotFound", create, Groups=["sg-8"], **subnet)
    refused("InvalidParameter", create, Groups=["sg-9"], **subnet)
    six = [f"sg-{it}" for it in range(6)]
    refused("SecurityGroupsPerInterfaceLimitExceeded", create, Groups=six, **subnet)
    refused("InvalidIPAddress.InUse", create, PrivateIpAddress=eni(ec2, loose)["PrivateIpAddress"], **subnet)
    refused("InvalidParameterValue", create, PrivateIpAddress="10.9.0.9", **subnet)
    refused("InvalidParameterCombination", create, Ipv4PrefixCount=1, SecondaryPrivateIpAddressCount=1, **subnet)
    refused("InvalidParameterValue", create, InterfaceType="natural", **subnet)
    refused("InvalidParameterValue", create, Ipv6PrefixCount=1, SubnetId="subnet-b")
    many = [{"ResourceType": "network-interface", "Tags": [{"Key": f"{it}", "Value": ""} for it in range(51)]}]
    refused("TagLimitExceeded", create, TagSpecifications=many, **subnet)
    create(ClientToken="token-9", **subnet)
    refused("IdempotentParameterMismatch", create, ClientToken="token-9", Description="a", **subnet)
    refused("InsufficientFreeAddressesInSubnet", create, SubnetId="subnet-b", SecondaryPrivateIpAddressCount=30)
    refused("InsufficientCidrBlocks", create, SubnetId="subnet-b", Ipv4PrefixCount=1)

    refused("InvalidNetworkInterfaceID.NotFound", attach, NetworkInterfaceId=absent, InstanceId="i-1", DeviceIndex=1)
    refused("InvalidInstanceID.NotFound", attach, InstanceId="i-9", DeviceIndex=1, **on)
    refused("IncorrectState", attach, InstanceId="i-4", DeviceIndex=1, **on)
    refused("InvalidParameterCombination", attach, InstanceId="i-3", DeviceIndex=1, **on)
    refused("InvalidParameterValue", attach, InstanceId="i-1", DeviceIndex=0, **on)
    refused("InvalidParameterValue", attach, InstanceId="i-1", DeviceIndex=1, NetworkCardIndex=1, **on)
    attachment = attach(InstanceId="i-1", DeviceIndex=1, **on)["AttachmentId"]
    refused("InvalidParameterValue", attach, InstanceId="i-2", DeviceIndex=1, **on)
    refused("AttachmentLimitExceeded", attach, NetworkInterfaceId=other, InstanceId="i-5", DeviceIndex=1)
    refused("InvalidParameterValue", ec2.delete_network_interface, **on)
    refused("InvalidAttachmentID.NotFound", ec2.detach_network_interface, AttachmentId="eni-attach-9")
    shown = ec2.describe_instances(InstanceIds=["i-1"])["Reservations"][0]["Instances"][0]
    (primary,) = [it for it in shown["NetworkInterfaces"] if it["Attachment"]["DeviceIndex"] == 0]
    refused(
        "OperationNotPermitted",
        ec2.detach_network_interface,
        AttachmentId=primary["Attachment"]["AttachmentId"],
    )
    modify = ec2.modify_network_interface_attribute
    refused("InvalidParameterCombination", modify, **on)
    wrong = {"AttachmentId": "eni-attach-9", "DeleteOnTermination": True}
    refused("InvalidAttachmentID.NotFound", modify, Attachment=wrong, **on)
    refused("InvalidGroup.NotFound", modify, Groups=["sg-8"], **on)

    refused("PrivateIpAddressLimitExceeded", assign, SecondaryPrivateIpAddressCount=10, **on)
    refused("MissingParameter", assign, **on)
    refused("InvalidParameterValue", assign, PrivateIpAddresses=["10.0.0.999"], **on)
    held = eni(ec2, other)["PrivateIpAddress"]
    refused("InvalidIPAddress.InUse", assign, PrivateIpAddresses=[held], **on)
    refused("InvalidParameterValue", assign, PrivateIpAddresses=[held], AllowReassignment=True, **on)
    own = eni(ec2, loose)["PrivateIpAddress"]
    unassign = ec2.unassign_private_ip_addresses
    refused("InvalidParameterValue", unassign, PrivateIpAddresses=[own], **on)
    refused("InvalidParameterValue", unassign, PrivateIpAddresses=["10.0.0.200"], **on)
    refused("InvalidParameterValue", ec2.unassign_ipv6_addresses, Ipv6Addresses=["2001:db8::99"], **on)

    refused("InvalidID", tags, Resources=["eni-x"], Tags=[{"Key": "a", "Value": ""}])
    refused("InvalidParameterValue", tags, Resources=[loose], Tags=[{"Key": "aws:a", "Value": ""}])
    associate = ec2.associate_address
    refused("InvalidAllocationID.NotFound", associate, AllocationId="eipalloc-9", **on)
    refused("MissingParameter", associate, AllocationId="eipalloc-1")
    refused("InvalidParameterCombination", associate, AllocationId="eipalloc-1", InstanceId="i-1", **on)
    associate(AllocationId="eipalloc-1", **on)
    refused("Resource.AlreadyAssociated", associate, AllocationId="eipalloc-1", NetworkInterfaceId=other)
    refused("InvalidAssociationID.NotFound", ec2.disassociate_address, AssociationId="eipassoc-9")
    refused("IncorrectInstanceState", associate, AllocationId="eipalloc-1", InstanceId="i-4")
    ec2.detach_network_interface(AttachmentId=attachment)
    of_listings(ec2)
    of_requests(ec2)


def of_listings(ec2):
    refused("InvalidNetworkInterfaceID.Malformed", ec2.describe_network_interfaces, NetworkInterfaceIds=["x"])
    refused("InvalidInstanceID.Malformed", ec2.describe_instances, InstanceIds=["x"])
    refused("InvalidInstanceID.NotFound", ec2.describe_instances, InstanceIds=["i-9"])
    refused("InvalidInstanceType", ec2.describe_instance_types, InstanceTypes=["x9.large"])
    refused("InvalidRouteTableID.NotFound", ec2.describe_route_tables, RouteTableIds=["rtb-9"])
    refused("InvalidGroup.NotFound", ec2.describe_security_groups, GroupIds=["sg-8"])
    refused("InvalidVpcID.NotFound", ec2.get_security_groups_for_vpc, VpcId="vpc-9")
    refused("InvalidVpcID.NotFound", ec2.describe_vpcs, VpcIds=["vpc-9"])
    refused("InvalidSubnetID.NotFound", ec2.describe_subnets, SubnetIds=["subnet-9"])
    refused("InvalidAllocationID.NotFound", ec2.describe_addresses, AllocationIds=["eipalloc-9"])
    refused("InvalidParameterValue", ec2.describe_vpcs, Filters=[named("color", "red")])
    many = [named("vpc-id", *(f"vpc-{it}" for it in range(201)))]
    refused("FilterLimitExceeded", ec2.describe_vpcs, Filters=many)


def of_requests(ec2):
    refused("UnsupportedOperation", ec2.detach_network_interface, AttachmentId="eni-attach-9", Force=True)
    for name, code in (("Action", "MissingAction"), ("Version", "MissingParameter")):
        lacking = altered(lambda body, name=name: body.pop(name))
        refused(code, lacking.describe_vpcs)
    for more, code in (
        ({"Action": "RunInstances"}, "InvalidAction"),
        ({"Version": "2014-10-01"}, "NoSuchVersion"),
        ({"Color": "red"}, "UnknownParameter"),
        ({"MaxResults": "many"}, "InvalidParameterValue"),
    ):
        refused(code, altered(lambda body, more=more: body.update(more)).describe_vpcs)
    unchecked = client(parameter_validation=False)
    refused("MissingParameter", unchecked.create_network_interface)


def limits():
    ec2 = client()
    refused("NetworkInterfaceLimitExceeded", ec2.create_network_interface, SubnetId="subnet-a")
    for _ in range(2):
        ec2.describe_vpcs(VpcIds=["vpc-1"])
    refused("RequestLimitExceeded", ec2.describe_vpcs, status=503, VpcIds=["vpc-1"])


def broken(call, *kinds, **parameters):
    """A call whose answer is none that boto3 can use."""
    try:
        answer = call(**parameters)
    except kinds:
        return
    raise AssertionError(f"expected one of {kinds}, answered {answer}")


def faults():
    ec2 = client(read_timeout=1)
    subnet = {"SubnetId": "subnet-a"}
    count = lambda: len(ec2.describe_network_interfaces()["NetworkInterfaces"])
    create = ec2.create_network_interface
    before = count()
    refused("InternalError", create, status=500, **subnet)
    broken(create, ConnectionClosedError, **subnet)
    equal(count() - before, 0)
    broken(create, ConnectionClosedError, **subnet)
    equal(count() - before, 1)
    broken(create, ResponseParserError, **subnet)
    equal(count() - before, 2)
    # A document of another service is one that boto3 finds nothing in.
    equal("NetworkInterface" in create(**subnet), False)
    equal(count() - before, 3)
    broken(create, ReadTimeoutError, **subnet)
    equal(count() - before, 4)
    # The call comes twice: boto3's client token makes it one interface.
    create(**subnet)
    equal(count() - before, 5)


def delays():
    ec2 = client()
    id = created(ec2)
    refused("InvalidNetworkInterfaceID.NotFound", eni, ec2=ec2, id=id)
    found = None
    # The case ends by its alarm if it never comes.
    while found is None:
        try:
            found = eni(ec2, id)
        except ClientError:
            time.sleep(0.05)
    equal(found["Status"], "available")
    ec2.attach_network_interface(NetworkInterfaceId=id, InstanceId="i-1", DeviceIndex=1)
    equal(eni(ec2, id)["Attachment"]["Status"], "attaching")


CASES = [listings, changes, pages, trials, callers, errors, limits, faults, delays]
signal.alarm(LONGEST)
{case.__name__: case for case in CASES}[sys.argv[1]]()
