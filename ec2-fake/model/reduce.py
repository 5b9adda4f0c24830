"""Reduces botocore's model of EC2 to what the fake reads and writes.

    pip download --no-deps botocore==1.44.8
    python3 reduce.py botocore-1.44.8-py3-none-any.whl > model.json

An action has its `parameters`, by their names in a request: `N` stands for the number of a list's
element. It has the `required` ones among them, and the shape of its `answer`. A shape is a scalar's
type, a list `[element, shape]`, or a structure `{element: shape}`.
"""

import gzip
import json
import os
import sys
import zipfile

MODEL = "botocore/data/ec2/2016-11-15/service-2.json.gz"
ACTIONS = [
    "AssignIpv6Addresses",
    "AssignPrivateIpAddresses",
    "AssociateAddress",
    "AttachNetworkInterface",
    "CreateNetworkInterface",
    "CreateTags",
    "DeleteNetworkInterface",
    "DescribeAddresses",
    "DescribeInstanceTypes",
    "DescribeInstances",
    "DescribeNetworkInterfaces",
    "DescribeRouteTables",
    "DescribeSecurityGroups",
    "DescribeSubnets",
    "DescribeTags",
    "DescribeVpcs",
    "DetachNetworkInterface",
    "DisassociateAddress",
    "GetSecurityGroupsForVpc",
    "ModifyNetworkInterfaceAttribute",
    "UnassignIpv6Addresses",
    "UnassignPrivateIpAddresses",
]
STRUCTURES = ("structure", "list")


def capitalised(name):
    return name[0].upper() + name[1:]


def parameters(shapes, shape, prefix):
    """Names of parameters and their types. Lists have no element of their own in a request."""
    found = {}
    shape = shapes[shape]
    if shape["type"] == "structure":
        for name, member in shape["members"].items():
            own = member.get("queryName") or capitalised(member.get("locationName", name))
            path = f"{prefix}.{own}" if prefix else own
            found.update(parameters(shapes, member["shape"], path))
    elif shape["type"] == "list":
        found.update(parameters(shapes, shape["member"]["shape"], f"{prefix}.N"))
    else:
        found[prefix] = shape["type"]
    return found


def required(shapes, shape):
    shape = shapes[shape]
    for name in shape.get("required", []):
        member = shape["members"][name]
        own = member.get("queryName") or capitalised(member.get("locationName", name))
        yield f"{own}.N" if shapes[member["shape"]]["type"] == "list" else own


def answers(shapes, shape, found):
    """Adds the shapes of an answer that are no scalars."""
    name, shape = shape, shapes[shape]
    if shape["type"] not in STRUCTURES or name in found:
        return
    found[name] = None

    def reference(member):
        answers(shapes, member["shape"], found)
        target = shapes[member["shape"]]
        return member["shape"] if target["type"] in STRUCTURES else target["type"]

    if shape["type"] == "list":
        member = shape["member"]
        found[name] = [member.get("locationName", "member"), reference(member)]
    else:
        found[name] = {
            member.get("locationName", own): reference(member)
            for own, member in shape["members"].items()
        }


def main(wheel):
    model = json.loads(gzip.decompress(zipfile.ZipFile(wheel).read(MODEL)))
    shapes, found, actions = model["shapes"], {}, {}
    for name in ACTIONS:
        operation = model["operations"][name]
        given = operation["input"]["shape"]
        answer = operation.get("output", {}).get("shape")
        if answer:
            answers(shapes, answer, found)
        actions[name] = {
            "parameters": parameters(shapes, given, ""),
            "required": sorted(required(shapes, given)),
            "answer": answer,
        }
    print("{")
    print(f' "source": "{os.path.basename(wheel)}, {MODEL} (Apache License 2.0)",')
    print(f' "version": "{model["metadata"]["apiVersion"]}",')
    print(f' "namespace": "{model["metadata"]["xmlNamespace"]}/",')
    for title, table, end in [("actions", actions, ","), ("shapes", found, "")]:
        rows = (f'  {json.dumps(name)}: {json.dumps(row)}' for name, row in sorted(table.items()))
        print(f' "{title}": {{\n' + ",\n".join(rows) + f"\n }}{end}")
    print("}")


main(sys.argv[1])
