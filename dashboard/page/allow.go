package page

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"ebb.dev/ebb/api/names"
)

// segment is a name as Kubernetes allows it in a path. It begins and ends with a letter or a digit,
// so it is neither "." nor "..".
const segment = `[a-z0-9]([a-z0-9.-]*[a-z0-9])?`

// allowed is what the page reads. All else is not there. Percent signs never match, so a path means
// to the API server what it means here.
var allowed = []*regexp.Regexp{
	exactly(`/apis/view\.ebb\.dev/v1alpha1(/` + segment + `)*`),
	exactly(`/apis/serving\.knative\.dev/v1/(namespaces/` + segment + `/)?(services|revisions|routes)(/` + segment + `)?`),
	exactly(`/api/v1/(namespaces/` + segment + `/)?events`),
	exactly(`/api/v1/nodes`),
	exactly(`/apis/apps/v1/namespaces/` + names.SystemNamespace + `/deployments`),
	exactly(`/apis/apps/v1/namespaces/` + names.SystemNamespace + `/daemonsets/node-agent`),
}

func exactly(pattern string) *regexp.Regexp { return regexp.MustCompile("^" + pattern + "$") }

func mayRead(u *url.URL) bool {
	return slices.ContainsFunc(allowed, func(a *regexp.Regexp) bool { return a.MatchString(u.EscapedPath()) })
}

// forAPI reports whether a path is one of an API server, and so not of an asset.
func forAPI(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}
