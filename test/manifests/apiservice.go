package manifests

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// APIService is the part of the kind of that name that config/ uses. The module that has all of it
// has an API server, too.
type APIService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group                string `json:"group"`
		Version              string `json:"version"`
		GroupPriorityMinimum int32  `json:"groupPriorityMinimum"`
		VersionPriority      int32  `json:"versionPriority"`
		Service              struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      int32  `json:"port"`
		} `json:"service"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (a *APIService) DeepCopyObject() runtime.Object {
	other := *a
	a.ObjectMeta.DeepCopyInto(&other.ObjectMeta)
	return &other
}

func addAPIService(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}, &APIService{})
	return nil
}
