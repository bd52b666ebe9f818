package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Source lists and watches the pods of a node that run for a revision. It holds one whole Pod at a
// time, however large all of them are: everybody who may create a pod may make it large.
func Source(config *rest.Config, node string) (cache.ListerWatcher, error) {
	scheme, version := runtime.NewScheme(), schema.GroupVersion{Version: "v1"}
	scheme.AddKnownTypes(version, &Pod{}, &PodList{})
	metav1.AddToGroupVersion(scheme, version)
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &version, "/api"
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("build client: %w", err)
	}
	get := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = fields.SelectorFromSet(fields.Set{"spec.nodeName": node, "status.phase": "Running"}).String()
		o.LabelSelector = revisionLabel
		return client.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			body, err := get(o).Stream(ctx)
			if err != nil {
				return nil, err
			}
			defer body.Close()
			return readList(body)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return get(o).Watch(ctx)
		},
	}, nil
}

// readList reads a list pod by pod.
func readList(from io.Reader) (*PodList, error) {
	list, d := &PodList{}, json.NewDecoder(from)
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("read the list of pods: %w", err)
		}
		switch {
		case t == json.Delim('{') && depth == 0:
			depth++
		case t == json.Delim('}') && depth == 1:
			return list, nil
		case depth == 0:
			return nil, errors.New("read the list of pods: it is no object")
		case t == "metadata":
			err = d.Decode(&list.ListMeta)
		case t == "items":
			err = readItems(d, list)
		default:
			err = d.Decode(&json.RawMessage{})
		}
		if err != nil {
			return nil, fmt.Errorf("read the list of pods: %w", err)
		}
	}
}

func readItems(d *json.Decoder, list *PodList) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil: // null
		return nil
	case t != json.Delim('['):
		return errors.New("its items are no list")
	}
	for d.More() {
		var p Pod
		if err := d.Decode(&p); err != nil {
			return err
		}
		list.Items = append(list.Items, p)
	}
	_, err := d.Token()
	return err
}
