// Package ebb is the root of the module. It holds no code, only the tests of the tree's own rules:
// which folder may import which, that documents name tests and files which exist, that no file says
// where it was built.
package ebb
