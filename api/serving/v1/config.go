package v1

import "ebb.dev/ebb/api/rules"

// Defaults and Features are the settings that this package's rules depend on.
type (
	Defaults = rules.Defaults
	Features = rules.Features
)
