// Package ebb is the root of the module; it holds the tests of the tree's own rules.
package ebb
