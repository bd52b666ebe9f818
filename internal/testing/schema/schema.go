// Package schema does with objects what the API server does by the definition of their kind. Only
// tests import it.
//
// Owns: nothing. Reads: files of definitions. Writes: nothing. Never: asks an API server.
package schema

import (
	"context"
	"os"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// Load reads a definition as the API server does.
func Load(t testing.TB, file string) (*apiextensionsv1.CustomResourceDefinition, *apiextensions.CustomResourceDefinition) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var external apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &external); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&external)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, &internal, nil); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &external, &internal
}

// Schema is that of a kind with one version.
type Schema struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
}

// Of reads the schema of a definition.
func Of(t testing.TB, file string) *Schema {
	t.Helper()
	_, definition := Load(t, file)
	structural, err := structuralschema.NewStructural(definition.Spec.Validation.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(definition.Spec.Validation.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return &Schema{structural, validator}
}

// Decode does what happens to an object that is created or updated before any webhook: what the
// schema does not know goes, nulls go, and defaults come. Server-side apply keeps nulls: see Apply.
func (s *Schema) Decode(object map[string]any) {
	pruning.Prune(object, s.structural, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	defaulting.Default(object, s.structural)
}

// Apply is Decode for an object that is applied by the server.
func (s *Schema) Apply(object map[string]any) {
	pruning.Prune(object, s.structural, true)
	defaulting.Default(object, s.structural)
}

// Validate judges an object after the mutating webhooks and before the validating ones.
func (s *Schema) Validate(object map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, object, s.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object)...)
	celErrs, _ := cel.NewValidator(s.structural, true, apiservercel.PerCallLimit).Validate(context.Background(), nil,
		s.structural, object, nil, apiservercel.RuntimeCELCostBudget)
	return append(errs, celErrs...)
}
