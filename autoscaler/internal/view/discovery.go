package view

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/view/v1alpha1"
)

// discovery returns what there is at a path that names no object, nil if it is none of these. Any
// caller may read it.
func discovery(path string) any {
	version := metav1.GroupVersionForDiscovery{GroupVersion: v1alpha1.GroupVersion.String(), Version: v1alpha1.Version}
	group := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: v1alpha1.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	switch path {
	case "/apis":
		group.TypeMeta = metav1.TypeMeta{}
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}}
	case prefix:
		return group
	case root:
		// Without the verb delete the API server's controllers leave it alone.
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion,
			APIResources: []metav1.APIResource{{Name: v1alpha1.Resource, SingularName: "service", Namespaced: true, Kind: v1alpha1.Kind,
				Verbs: metav1.Verbs{"get", "list", "watch"}}}}
	}
	return nil
}
