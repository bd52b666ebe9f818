package wire

import (
	"slices"
	"strings"
)

// SilentNodes is the name of the Lease in Ebb's namespace whose annotation SilentNodesAnnotation
// has the nodes that autoscalers call silent, and nobody may renew.
const (
	SilentNodes           = "autoscaler-silent-nodes"
	SilentNodesAnnotation = "serving.ebb.dev/silent-nodes"
)

// MaxSilentNodes bounds the nodes that are told of.
const MaxSilentNodes = 1000

// EncodeSilentNodes is the value of the annotation. Of too many nodes some are left out.
func EncodeSilentNodes(names []string) string {
	return strings.Join(names[:min(len(names), MaxSilentNodes)], ",")
}

// DecodeSilentNodes is what the annotation says.
func DecodeSilentNodes(value string) []string {
	return slices.DeleteFunc(strings.SplitN(value, ",", MaxSilentNodes+1), func(name string) bool { return name == "" || strings.Contains(name, ",") })
}
