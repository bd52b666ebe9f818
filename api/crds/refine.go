package main

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

type node = apiextensionsv1.JSONSchemaProps

// Limits that give the API server's estimate of a rule's cost a bound. No manifest in use comes
// near them.
const (
	maxTrafficTargets = 1000
	maxContainers     = 100
	maxNameLength     = 63
)

// edit changes the schema at a path in place.
func edit(root *node, change func(*node) error, path ...string) error {
	if len(path) == 0 {
		return change(root)
	}
	name := path[0]
	if name == "[]" {
		if root.Items == nil || root.Items.Schema == nil {
			return fmt.Errorf("no list before %v", path)
		}
		return edit(root.Items.Schema, change, path[1:]...)
	}
	child, ok := root.Properties[name]
	if !ok {
		return fmt.Errorf("no field %q before %v", name, path[1:])
	}
	if err := edit(&child, change, path[1:]...); err != nil {
		return err
	}
	root.Properties[name] = child
	return nil
}

func refineService(root *node) error {
	if err := edit(root, refineTemplate, "spec", "template"); err != nil {
		return err
	}
	if err := edit(root, refineTraffic, "spec", "traffic"); err != nil {
		return err
	}
	if err := edit(root, func(target *node) error {
		return rule(target, "!has(self.configurationName)",
			"must not set the field(s): configurationName; a Service has only one Configuration")
	}, "spec", "traffic", "[]"); err != nil {
		return err
	}
	return dns1035Name(root)
}

func refineConfiguration(root *node) error {
	if err := edit(root, refineTemplate, "spec", "template"); err != nil {
		return err
	}
	return dns1035Name(root)
}

func refineRevision(root *node) error {
	if err := edit(root, refinePodSpec, "spec"); err != nil {
		return err
	}
	return dns1035Name(root)
}

func refineRoute(root *node) error {
	if err := edit(root, refineTraffic, "spec", "traffic"); err != nil {
		return err
	}
	return dns1035Name(root)
}

// refineDomainMapping says what KReference's own validation says, and refuses a Secret without a
// name.
func refineDomainMapping(root *node) error {
	if err := edit(root, func(name *node) error {
		least := int64(1)
		name.MinLength = &least
		return nil
	}, "spec", "tls", "secretName"); err != nil {
		return err
	}
	return edit(root, func(ref *node) error {
		return rule(ref, "has(self.apiVersion) || has(self.group)", "expected exactly one, got neither: apiVersion, group")
	}, "spec", "ref")
}

func refinePodAutoscaler(root *node) error {
	return edit(root, func(spec *node) error {
		minimum(spec, "containerConcurrency", 0)
		spec.Properties["reachability"] = withEnum(spec.Properties["reachability"], "", "Reachable", "Unreachable")
		spec.Properties["protocolType"] = withEnum(spec.Properties["protocolType"], "http1", "h2c")
		return nil
	}, "spec")
}

// dns1035Name refuses names that cannot be the first label of a host. Kubernetes itself checks only
// for DNS-1123 subdomains of up to 253 characters.
func dns1035Name(root *node) error {
	return rule(root, `self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63`,
		"metadata.name must be a DNS-1035 label: at most 63 lower-case letters, digits and dashes, beginning with a letter, "+
			"not ending with a dash")
}

func refineTraffic(traffic *node) error {
	limit := int64(maxTrafficTargets)
	traffic.MaxItems = &limit
	if err := rule(traffic, "size(self) == 0 || self.map(t, has(t.percent) ? t.percent : 0).sum() == 100",
		"the percentages of all traffic targets must add up to 100"); err != nil {
		return err
	}
	target := traffic.Items.Schema
	minimum(target, "percent", 0)
	percent := target.Properties["percent"]
	hundred := 100.0
	percent.Maximum = &hundred
	target.Properties["percent"] = percent

	tag := target.Properties["tag"]
	length := int64(maxNameLength)
	tag.MaxLength = &length
	tag.Pattern = "^([a-z]([-a-z0-9]*[a-z0-9])?)?$"
	target.Properties["tag"] = tag

	for _, name := range []string{"revisionName", "configurationName"} {
		field := target.Properties[name]
		subdomain := int64(253)
		field.MaxLength = &subdomain
		target.Properties[name] = field
	}
	if err := rule(target, "!has(self.url)", "must not set the field(s): url; it is reported in the status"); err != nil {
		return err
	}
	if err := rule(target, "!(has(self.revisionName) && self.revisionName != '' && "+
		"has(self.configurationName) && self.configurationName != '')",
		"expected exactly one, got both: configurationName, revisionName"); err != nil {
		return err
	}
	return rule(target, "!has(self.latestRevision) || self.latestRevision == "+
		"(!has(self.revisionName) || self.revisionName == '')",
		"latestRevision must be true exactly when revisionName is empty")
}

func refineTemplate(template *node) error {
	metadata := template.Properties["metadata"]
	keep := true
	metadata.XPreserveUnknownFields = &keep
	metadata.Description = "Labels and annotations of the Revision; its name, when you want to choose it."
	template.Properties["metadata"] = metadata
	return edit(template, refinePodSpec, "spec")
}

func rule(n *node, expression, message string) error {
	n.XValidations = append(n.XValidations, apiextensionsv1.ValidationRule{Rule: expression, Message: message})
	return nil
}

func minimum(n *node, field string, least float64) {
	property := n.Properties[field]
	property.Minimum = &least
	n.Properties[field] = property
}

func withEnum(n node, values ...string) node {
	for _, value := range values {
		n.Enum = append(n.Enum, apiextensionsv1.JSON{Raw: []byte(fmt.Sprintf("%q", value))})
	}
	return n
}
