// Package migrate moves an installation of Knative Serving to Ebb in place, and back.
//
// Owns: the order of the steps, and the ConfigMap ebb-migration, which remembers how far a move
// came and what a way back needs. Reads: Knative's and Ebb's objects, and Ebb's manifests. Writes:
// the objects of both installations and the owners of what revisions are made of, with the caller's
// rights. Never: a user's Service, Route or Configuration; a pod of a revision.
package migrate
