package main

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

func parse(folder string) (*crd.Parser, error) {
	registry := &markers.Registry{}
	if err := (crd.Generator{}).RegisterMarkers(registry); err != nil {
		return nil, err
	}
	roots, err := loader.LoadRoots(folder)
	if err != nil {
		return nil, err
	}
	parser := &crd.Parser{
		Collector: &markers.Collector{Registry: registry},
		Checker:   &loader.TypeChecker{NodeFilters: []loader.NodeFilter{crd.Generator{}.CheckFilter()}},
	}
	crd.AddKnownTypes(parser)
	for _, root := range roots {
		parser.NeedPackage(root)
	}
	return parser, nil
}

func define(parser *crd.Parser, k kind) (*apiextensionsv1.CustomResourceDefinition, error) {
	parser.NeedCRDFor(k.groupKind, nil)
	parsed, ok := parser.CustomResourceDefinitions[k.groupKind]
	if !ok {
		return nil, fmt.Errorf("no kind of that name in %s", k.folder)
	}
	// Schemas of kinds of one folder share parts.
	definition := *parsed.DeepCopy()
	crd.FixTopLevelMetadata(definition)
	definition.Labels = map[string]string{
		"app.kubernetes.io/name":    "knative-serving",
		"app.kubernetes.io/version": "devel",
		"knative.dev/crd-install":   "true",
	}
	for key, value := range k.labels {
		definition.Labels[key] = value
	}
	// Clients never see the status of a definition that is to be applied.
	definition.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	if len(definition.Spec.Versions) != 1 {
		return nil, fmt.Errorf("%d versions, want exactly one", len(definition.Spec.Versions))
	}
	root := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	describeStandardFields(root)
	if status, ok := root.Properties["status"]; ok {
		shorten(&status, nil)
		root.Properties["status"] = status
	}
	if k.refine != nil {
		if err := k.refine(root); err != nil {
			return nil, err
		}
	}
	return &definition, nil
}
