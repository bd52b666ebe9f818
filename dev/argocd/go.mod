// Argo CD's checks of health and what runs them, apart from the dependencies of Ebb.
module ebb.dev/ebb/dev/argocd

go 1.26.0

require (
	github.com/argoproj/argo-cd/v3 v3.4.13
	github.com/yuin/gopher-lua v1.1.2
)
