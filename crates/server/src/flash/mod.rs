//! Where a buffer lives: provisioning of its store on flash.
