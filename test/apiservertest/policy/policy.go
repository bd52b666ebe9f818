// Package policy judges writes by ValidatingAdmissionPolicies as an API server does, with its own
// code, so that tests can ask what the policies of config/ let a component write.
//
// Owns, writes: nothing. Reads: files. Never: matches what config/ does not use, such as selectors
// of namespaces.
package policy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// Set is policies that are in force.
type Set struct {
	policies []compiled
	// Params is what a policy with parameters gets.
	Params *corev1.ConfigMap
}

type compiled struct {
	*admissionregistrationv1.ValidatingAdmissionPolicy
	validating.Validator
}

// Write is a request that policies judge.
type Write struct {
	Account   string // of knative-serving
	Operation admission.Operation
	Resource  schema.GroupVersionResource
	Sub       string
	DryRun    bool
	// Before is nil for a create, After for a delete.
	Before, After *unstructured.Unstructured
}

// Read compiles the policies of files. A policy without a binding that denies is an error: it has
// no effect.
func Read(files ...string) (*Set, error) {
	set, bound := &Set{}, map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if err := set.add(document, bound); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	for _, p := range set.policies {
		if !bound[p.Name] {
			return nil, fmt.Errorf("policy %s has no binding", p.Name)
		}
	}
	return set, nil
}

func (s *Set) add(document []byte, bound map[string]bool) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "ValidatingAdmissionPolicy":
		var p admissionregistrationv1.ValidatingAdmissionPolicy
		if err := yaml.UnmarshalStrict(document, &p); err != nil {
			return err
		}
		v, err := compile(&p)
		if err != nil {
			return fmt.Errorf("policy %s: %w", p.Name, err)
		}
		s.policies = append(s.policies, compiled{&p, v})
	case "ValidatingAdmissionPolicyBinding":
		var b admissionregistrationv1.ValidatingAdmissionPolicyBinding
		if err := yaml.UnmarshalStrict(document, &b); err != nil {
			return err
		}
		bound[b.Spec.PolicyName] = slices.Equal(b.Spec.ValidationActions, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}) &&
			b.Spec.MatchResources == nil
	}
	return nil
}

// compile does what the API server does with a policy.
func compile(p *admissionregistrationv1.ValidatingAdmissionPolicy) (validating.Validator, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	options := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.StoredExpressions)
	var conditions, validations []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
	}
	for _, accessor := range slices.Concat(conditions, validations) {
		if result := compiler.CompileCELExpression(accessor, options, environment.StoredExpressions); result.Error != nil {
			return nil, fmt.Errorf("%s: %w", accessor.GetExpression(), result.Error)
		}
	}
	none := compiler.CompileCondition(nil, options, environment.StoredExpressions)
	matcher := matchconditions.NewMatcher(compiler.CompileCondition(conditions, options, environment.StoredExpressions), p.Spec.FailurePolicy,
		"policy", "validate", p.Name)
	return validating.NewValidator(compiler.CompileCondition(validations, options, environment.StoredExpressions), matcher, none, none,
		p.Spec.FailurePolicy, nil), nil
}

// Judge returns what the policies say against a write, nil if nothing.
func (s *Set) Judge(w Write) error {
	var refused []error
	for _, p := range s.policies {
		if !s.matches(p, w) {
			continue
		}
		if err := s.judge(p, w); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", p.Name, err))
		}
	}
	return errors.Join(refused...)
}

func (s *Set) matches(p compiled, w Write) bool {
	resource := w.Resource.Resource
	if w.Sub != "" {
		resource += "/" + w.Sub
	}
	return slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, w.Resource.Group) && slices.Contains(r.Resources, resource) &&
			(slices.Contains(r.APIVersions, w.Resource.Version) || slices.Contains(r.APIVersions, "*")) &&
			slices.Contains(r.Operations, admissionregistrationv1.OperationType(w.Operation))
	})
}

func (s *Set) judge(p compiled, w Write) error {
	some := w.After
	if some == nil {
		some = w.Before
	}
	var before, after, params runtime.Object
	if w.Before != nil {
		before = w.Before
	}
	if w.After != nil {
		after = w.After
	}
	if p.Spec.ParamKind != nil {
		if s.Params == nil {
			return nil
		}
		params = s.Params
	}
	account := &user.DefaultInfo{Name: "system:serviceaccount:knative-serving:" + w.Account}
	attributes := admission.NewAttributesRecord(after, before, some.GroupVersionKind(), some.GetNamespace(), some.GetName(), w.Resource, w.Sub,
		w.Operation, nil, w.DryRun, account)
	versioned, err := admission.NewVersionedAttributes(attributes, some.GroupVersionKind(), admission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
	if err != nil {
		return err
	}
	result := p.Validate(context.Background(), w.Resource, versioned, params, nil, apiservercel.RuntimeCELCostBudget, nil)
	var refused []string
	for _, d := range result.Decisions {
		if d.Action == validating.ActionDeny {
			refused = append(refused, d.Message)
		}
	}
	if len(refused) > 0 {
		return errors.New(strings.Join(refused, "; "))
	}
	return nil
}
