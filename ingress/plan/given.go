package plan

import (
	"regexp"
	"strings"

	"ebb.dev/ebb/settings"
)

// anyName stands for the name of a target in an expanded template. It is a DNS label, because
// templates may do something with it.
const anyName = "ebb0any0name"

// aName matches every name of a target.
const aName = `[a-z0-9](?:[-a-z0-9]*[a-z0-9])?`

// Gives reports whether the settings give a public host to a namespace: whether one of its Routes,
// or a tag of one, would have the host by its name alone. What tenants write, labels and
// annotations, gives no host in this sense, and neither does a template without the namespace in it
// give one to a namespace and not to the others.
func Gives(s *settings.Snapshot, clusterDomain, host, namespace string) bool {
	for _, choice := range s.Domain.Choices {
		if choice.Domain == "svc."+clusterDomain {
			continue // it keeps Routes local
		}
		text, err := s.Network.DomainTemplate.Expand(settings.DomainValues{Name: anyName, Namespace: namespace, Domain: choice.Domain,
			Annotations: map[string]string{}, Labels: map[string]string{}})
		if err != nil {
			continue
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(text), anyName, aName)
		if match, err := regexp.MatchString("^"+pattern+"$", host); err == nil && match {
			return true
		}
	}
	return false
}
